"""The loop: selection, early stopping, accumulation, precision, and the files it writes."""

from __future__ import annotations

import json
import os
import platform
import threading
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional
from toys import stage_config, without_dropout

from embedkit.errors import TrainingError
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.training.config import DevConfig
from embedkit.training.loop import RunControl, evaluation_steps, total_steps, train
from embedkit.training.method import BatchSpec, Method, StepOutput, pooled
from embedkit.training.optim import OptimConfig
from embedkit.training.run_folder import RunFolder


class Shrink(Method):
    """Shortens embeddings: a loss without state, the mean over the batch."""

    batch_spec: ClassVar[BatchSpec] = BatchSpec()

    def __init__(self, encoder, *, fail_at=None):
        super().__init__()
        self.encoder, self.fail_at = encoder, fail_at
        self.seen, self.dtypes = [], set()

    def forward(self, batch):
        embeddings = pooled(self.encoder, batch.views[0])
        self.dtypes.add(self.encoder.backbone.encoder.layer[0].output.dense(torch.zeros(1, 64)).dtype)
        loss = embeddings.square().sum(dim=1).mean()
        if self.fail_at is not None and len(self.seen) >= self.fail_at:
            loss = loss * torch.nan
        length = functional.normalize(embeddings.detach(), dim=1).norm()
        return StepOutput(loss, metrics={"length": length}, state_update={"embeddings": embeddings.detach()})

    def after_step(self, outputs):
        self.seen.append(len(outputs))


@pytest.fixture
def setup(make_encoder, make_batches, tmp_path):
    """``setup(**optim)`` -> method and a function that trains it."""

    def setup(*, rows=24, dropout=True, fail_at=None, folder="run", **optim):
        encoder = make_encoder() if dropout else without_dropout(make_encoder())
        method = Shrink(encoder, fail_at=fail_at)
        optim = OptimConfig(**{"batch_size": 6, "steps": 12, "lr": 1e-3, **optim})
        batches = make_batches(method, optim.batch_size, texts=rows)
        place = RunFolder(tmp_path / folder)

        def go(*, evaluate=None, dev_every=4, dev_most=None, patience=None, minutes=5.0, **options):
            dev = DevConfig(every=dev_every, most=dev_most, patience=patience)
            config = stage_config(optim=optim, seed=0, dev=dev, checkpoint_minutes=minutes)
            scores = None if evaluate is None else lambda: {"dev": evaluate(), "other": 0.25}
            return train(method, batches, config, place, RunControl(show_progress=False, **options), scores)

        return method, go, place

    return setup


def records(place):
    return [json.loads(line) for line in place.metrics.read_text().splitlines()]


def weights(encoder):
    return torch.cat([parameter.detach().flatten() for parameter in encoder.parameters()])


class TestSelection:
    def test_without_dev_the_last_step_is_kept(self, setup):
        method, go, place = setup()
        state = go()
        assert (state.finished, state.step, state.best_score) == (True, 12, None)
        assert torch.equal(weights(SentenceEncoder.load(place.model)), weights(method.encoder))

    @pytest.mark.parametrize("stopped_after", [None, 6])
    def test_a_share_of_the_start_is_kept_also_by_a_resumed_run(self, setup, stopped_after):
        method, go, place = setup(keep=0.25)
        start = weights(method.encoder).clone()
        if stopped_after is not None:
            steps = iter(range(1, 100))
            go(should_stop=lambda: next(steps) == stopped_after)
            _, go, place = setup(keep=0.25)
        go(resume=stopped_after is not None)
        _, go, plain = setup(folder="plain")
        go()
        trained, kept = (weights(SentenceEncoder.load(each.model)) for each in (plain, place))
        torch.testing.assert_close(kept, trained.lerp(start, 0.25))

    def test_the_best_is_kept_and_only_strictly_better_counts(self, setup):
        method, go, place = setup()
        scores, kept = iter([0.1, 0.7, 0.7]), []

        def evaluate():
            kept.append(weights(method.encoder).clone())
            return next(scores)

        state = go(evaluate=evaluate)
        assert (state.best_score, state.best_step) == (0.7, 8)
        assert torch.equal(weights(SentenceEncoder.load(place.model)), kept[1])

    @pytest.mark.parametrize("stopped_after", [None, 6])
    def test_a_constant_score_keeps_the_last_and_says_so(self, setup, caplog, stopped_after):
        method, go, place = setup()
        if stopped_after is not None:
            steps = iter(range(1, 100))
            go(evaluate=lambda: -1.0, should_stop=lambda: next(steps) == stopped_after)
            method, go, place = setup()
        state = go(evaluate=lambda: -1.0, resume=stopped_after is not None)
        assert (state.best_score, state.best_step) == (-1.0, 12)
        assert torch.equal(weights(SentenceEncoder.load(place.model)), weights(method.encoder))
        assert sum("-1.0000 at every evaluation" in record.getMessage() for record in caplog.records) == 1

    def test_a_nan_score_is_worst(self, setup):
        _, go, _ = setup()
        scores = iter([float("nan"), -0.5, float("nan")])
        assert go(evaluate=lambda: next(scores)).best_step == 8

    def test_an_undefined_score_selects_nothing(self, setup, caplog):
        method, go, place = setup()
        state = go(evaluate=lambda: float("nan"))
        assert (state.best_score, state.best_step) == (None, None)
        assert torch.equal(weights(SentenceEncoder.load(place.model)), weights(method.encoder))
        assert "dev" not in {name for record in records(place) for name in record}
        assert sum("the development score is undefined" in record.getMessage() for record in caplog.records) == 1


class TestCostOfEvaluation:
    def test_it_is_reported_once_with_the_settings_that_reduce_it(self, setup, caplog):
        caplog.set_level("INFO")
        _, go, _ = setup(steps=8)
        go(evaluate=lambda: 0.5)
        (message,) = [text for text in caplog.messages if "an evaluation takes" in text]
        assert message.endswith("% of the run, by dev.every, dev.limit and dev.most")

    def test_the_maximum_holds_wherever_a_run_is_interrupted(self, setup):
        _, go, place = setup(steps=23)
        steps = iter(range(1, 100))
        go(evaluate=lambda: 0.5, dev_every=2, dev_most=4, should_stop=lambda: next(steps) == 7)
        _, go, place = setup(steps=23)
        go(evaluate=lambda: 0.5, dev_every=2, dev_most=4, resume=True)
        assert [record["step"] for record in records(place) if "dev" in record] == [6, 12, 18, 23]


class TestEarlyStop:
    def test_an_epoch_without_an_evaluation_is_not_counted(self, setup):
        _, go, _ = setup(steps=40)  # ten epochs
        scores = iter([0.5, 0.4])
        state = go(evaluate=lambda: next(scores), patience=1, dev_most=2)
        assert (state.finished, state.step, state.stale_epochs) == (True, 40, 1)

    def test_patience_counts_epochs_without_a_better_score(self, setup):
        _, go, _ = setup(steps=100)  # four steps per epoch
        scores = iter([0.1, 0.2, 0.2, 0.1, 0.9])
        state = go(evaluate=lambda: next(scores), patience=2)
        assert (state.finished, state.step, state.best_step) == (True, 16, 8)

    def test_a_better_score_within_the_epoch_counts(self, setup):
        _, go, _ = setup(steps=16)
        scores = iter([0.1, 0.1, 0.3, 0.1, 0.4, 0.1, 0.5, 0.1])
        state = go(evaluate=lambda: next(scores), patience=1, dev_every=2)
        assert state.step == 16

    def test_a_run_interrupted_without_patience_left_ends(self, setup):
        _, go, _ = setup(steps=100)
        stops = iter([*[False] * 7, True])
        stopped = go(evaluate=lambda: 0.1, patience=1, should_stop=lambda: next(stops))
        assert not stopped.finished
        _, go, _ = setup(steps=100)
        resumed = go(evaluate=lambda: 0.1, patience=1, resume=True)
        assert (resumed.finished, resumed.step) == (True, 8)


class TestSteps:
    def test_accumulation_equals_one_large_batch(self, setup):
        # With a large epsilon a step is proportional to the gradient and does not amplify rounding.
        options = {"dropout": False, "steps": 2, "epsilon": 1.0, "lr": 0.1}
        small, go_small, _ = setup(folder="small", batch_size=4, accumulate=3, **options)
        large, go_large, _ = setup(folder="large", batch_size=12, **options)
        start = weights(small.encoder).clone()
        go_small()
        go_large()
        assert not torch.allclose(weights(small.encoder), start, atol=1e-3)
        assert small.seen == [3, 3]
        assert large.seen == [1, 1]
        assert (weights(small.encoder) - weights(large.encoder)).abs().max() < 1e-5

    @pytest.mark.parametrize("amp", ["off", "bf16"])
    def test_precision_is_that_of_the_networks(self, setup, amp):
        method, go, _ = setup(amp=amp, steps=3)
        before = weights(method.encoder).clone()
        state = go()
        expected = {"off": torch.float32, "bf16": torch.bfloat16}[amp]
        assert method.dtypes == {expected}
        assert state.finished
        after = weights(method.encoder)
        assert after.dtype == torch.float32
        assert after.isfinite().all()
        assert not torch.equal(before, after)

    @pytest.mark.parametrize("fail_at", [0, 5])
    def test_a_nan_loss_ends_the_run(self, setup, fail_at):
        _, go, place = setup(fail_at=fail_at)
        with pytest.raises(TrainingError, match=f"the loss is nan at step {fail_at + 1}; lower optim.lr"):
            go(minutes=1e-9)
        assert place.last.exists() == (fail_at > 0)
        assert not place.model.exists()
        assert not [thread for thread in threading.enumerate() if thread.name == "embedkit-batches"]


class TestMetrics:
    def test_losses_metrics_and_rates_are_logged(self, setup):
        _, go, place = setup(steps=24, warmup=0.5)
        go()
        found = records(place)
        assert [record["step"] for record in found] == [10, 20, 24]
        assert {*found[0]} == {"step", "epoch", "loss", "length", "lr", "seconds"}
        assert found[0]["lr"] == pytest.approx(1e-3 * 9 / 12)
        assert found[1]["epoch"] == 5
        assert found[2]["loss"] < found[0]["loss"]

    @pytest.mark.parametrize("killed_after", [3, 11])
    def test_a_resumed_run_repeats_no_line(self, setup, killed_after):
        class Killed(BaseException):
            pass

        def kill():
            if next(steps) == killed_after:
                raise Killed
            return False

        steps = iter(range(1, 100))
        _, go, place = setup(steps=24)
        with pytest.raises(Killed):
            go(should_stop=kill, evaluate=lambda: 0.5, dev_every=2)
        _, go, _ = setup(steps=24)
        go(resume=True, evaluate=lambda: 0.5, dev_every=2)
        assert [record["step"] for record in records(place) if "loss" in record] == [10, 20, 24]
        assert [record["step"] for record in records(place) if "dev" in record] == list(range(2, 25, 2))


class TestActivationLimit:
    def test_the_penalty_changes_the_weights_and_is_logged(self, setup):
        method, go, _ = setup()
        go()
        limited, go, place = setup(folder="limited", activation_limit=0.5)
        go()

        assert records(place)[0]["activations"] > 0
        assert not torch.equal(weights(limited.encoder), weights(method.encoder))

    @pytest.mark.parametrize(("limit", "warns"), [(0.01, True), (3.0, False)])
    def test_a_penalty_that_outweighs_the_loss_is_told_once(self, setup, caplog, limit, warns):
        _, go, _ = setup(activation_limit=limit)
        go()
        assert sum("beyond optim.activation_limit cost" in text for text in caplog.messages) == warns


class TestResume:
    def test_a_finished_run_is_not_changed(self, setup):
        _, go, place = setup()
        state = go()
        before = place.last.stat().st_mtime_ns
        method, go, _ = setup()
        assert go(resume=True) == state
        assert method.seen == []
        assert place.last.stat().st_mtime_ns == before

    def test_checkpoints_are_written_by_time(self, setup):
        _, go, place = setup(steps=3)
        times = []
        go(minutes=1e-9, should_stop=lambda: times.append(place.last.stat().st_mtime_ns) or False)
        assert len(set(times)) == 3

    def test_without_resume_it_starts_over(self, setup):
        _, go, _ = setup()
        go(should_stop=lambda: True)
        method, go, _ = setup()
        go()
        assert len(method.seen) == 12


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other libraries keep no gaps")
def test_memory_that_is_freed_between_blocks_in_use_is_returned_to_the_system(setup):
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    _, go, _ = setup()
    blocks = [torch.ones(16_000) for _ in range(4000)]  # 256 MB, in pieces that glibc does not map on their own
    kept = blocks[::100]
    del blocks
    before = resident()
    go()
    assert len(kept) == 40
    assert resident() < before - 100e6


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (None, [4, 8, 10, 12, 16, 20, 23]),
        (7, [4, 8, 10, 12, 16, 20, 23]),
        (6, [4, 8, 12, 16, 20, 23]),
        (3, [8, 16, 23]),
        (1, [23]),
    ],
)
def test_at_intervals_at_epoch_ends_and_at_the_end(most, expected):
    assert sorted(evaluation_steps(23, steps_per_epoch=10, every=4, most=most)) == expected


@given(st.integers(1, 400), st.integers(1, 400), st.integers(1, 400), st.integers(1, 50))
def test_the_maximum_is_kept_and_the_last_step_is_evaluated(total, steps_per_epoch, every, most):
    steps = evaluation_steps(total, steps_per_epoch=steps_per_epoch, every=every, most=most)
    assert 1 <= len(steps) <= most
    assert max(steps) == total
    assert min(steps) >= 1


def test_steps_count_accumulated_batches_or_are_given():
    assert total_steps(10, accumulate=3, epochs=4, steps=None) == (3, 12)
    assert total_steps(10, accumulate=3, epochs=4, steps=5) == (3, 5)
    assert total_steps(2, accumulate=3, epochs=4, steps=None) == (1, 4)
