"""The bootstrap against a slow implementation with the same draws, against scipy's, and by its error rate."""

from __future__ import annotations

import statistics

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from embedkit.evaluation.pairs import Thresholds, separation
from embedkit.evaluation.results import Resampler, Samples
from embedkit.evaluation.sts import correlation


def interval(resampler, **options):
    return Samples.of(resampler, **options).interval()


def compare(first, second, **options):
    return Samples.of(second, **options).less(Samples.of(first, **options))


def slow_samples(sizes, figure, samples):
    """Draw row by row, set by set, and compute the statistic on lists."""
    generator = np.random.default_rng(0)
    return [figure(*[generator.integers(size, size=size).tolist() for size in sizes]) for _ in range(samples)]


def slow_quantile(values, share):
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])


def slow_interval(values):
    return slow_quantile(values, 0.025), slow_quantile(values, 0.975)


@pytest.fixture
def numbers():
    generator = np.random.default_rng(3)
    wanted = generator.integers(0, 6, size=30).astype(np.float64)
    return wanted, [(wanted + noise * generator.standard_normal(30)).astype(np.float32) for noise in (1.0, 4.0)]


def test_a_mean(numbers):
    scores = numbers[1][0].astype(np.float64)
    values = slow_samples([30], lambda rows: statistics.fmean(scores[row] for row in rows), 200)
    found = interval(Resampler.of_rows(scores), samples=200)
    assert (found.low, found.high) == pytest.approx(slow_interval(values), abs=1e-12)


def test_a_correlation(numbers):
    wanted, (predicted, _) = numbers
    values = slow_samples([30], lambda rows: stats.spearmanr(predicted[rows], wanted[rows]).statistic, 100)
    found = interval(correlation(predicted, wanted), samples=100)
    assert (found.low, found.high) == pytest.approx(slow_interval(values), abs=1e-12)


def test_an_area(numbers):
    wanted, (predicted, _) = numbers
    labels = wanted > 2
    values = slow_samples([30], lambda rows: roc_auc_score(labels[rows], predicted[rows]), 100)
    found = interval(separation(predicted, labels, Thresholds.roc_auc), samples=100)
    assert (found.low, found.high) == pytest.approx(slow_interval(values), abs=1e-12)


@pytest.mark.usefixtures("numbers")
def test_an_average_draws_from_each_set():
    first, second = np.arange(5.0), np.arange(10.0, 17.0)
    values = slow_samples(
        [5, 7], lambda a, b: (np.mean([first[row] for row in a]) + np.mean([second[row] for row in b])) / 2, 100
    )
    found = interval(Resampler.of_sets([Resampler.of_rows(first), Resampler.of_rows(second)]), samples=100)
    assert (found.low, found.high) == pytest.approx(slow_interval(values), abs=1e-12)


def test_a_difference_is_paired(numbers):
    wanted, (better, worse) = numbers

    def difference(rows):
        return stats.spearmanr(better[rows], wanted[rows])[0] - stats.spearmanr(worse[rows], wanted[rows])[0]

    values = slow_samples([30], difference, 100)
    found = compare(correlation(worse, wanted), correlation(better, wanted), samples=100)
    assert (found.interval.low, found.interval.high) == pytest.approx(slow_interval(values), abs=1e-12)
    against = min(sum(value <= 0 for value in values), sum(value >= 0 for value in values))
    assert found.p_value == pytest.approx(2 * (1 + against) / 101)
    assert found.value == pytest.approx(difference(np.arange(30)))


def test_scipys_percentile_interval_is_the_same_but_for_its_draws():
    scores = np.random.default_rng(5).exponential(size=80)
    theirs = stats.bootstrap((scores,), np.mean, n_resamples=9999, method="percentile", rng=1).confidence_interval
    found = interval(Resampler.of_rows(scores), samples=9999)
    width = theirs.high - theirs.low
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=0.04 * width)


def test_the_rate_of_false_differences_is_the_nominal_one():
    generator = np.random.default_rng(7)
    wrong = 0
    for _ in range(200):
        hard = generator.standard_normal(60)  # shared by both models; pairing removes it
        first, second = (hard + 0.3 * generator.standard_normal(60) for _ in range(2))
        p_value = compare(Resampler.of_rows(first), Resampler.of_rows(second), samples=199).p_value
        wrong += p_value is not None and p_value < 0.05
    assert 2 <= wrong <= 24  # 5 % of 200 are 10; a binomial's 99.9 % range
