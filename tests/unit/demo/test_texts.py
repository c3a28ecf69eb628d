"""The demo's text: reproducible by seed, many different sentences, none of the evaluation's."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[3] / "examples" / "demo"


@pytest.fixture(scope="module")
def texts():
    spec = importlib.util.spec_from_file_location("demo_texts", DEMO / "texts.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def domains(texts):
    return texts.load_domains(DEMO / "domains")


@pytest.fixture(scope="module")
def corpus(texts, domains):
    return texts.corpus(domains, 20_000, seed=1)


def test_there_are_enough_different_sentences(corpus):
    assert len(corpus) == len(set(corpus)) == 20_000


def test_sentences_are_whole(corpus):
    for text in corpus:
        assert not re.search(r"[{}\[\]]|\(n\)|  ", text)
        assert text[0].isupper() or not text[0].isalpha()


def test_the_seed_decides(texts, domains):
    draws = [texts.corpus(domains, 500, seed=seed) for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]


def test_every_domain_has_its_share(texts, domains):
    by_domain = Counter(name for name, text in _owners(texts, domains, texts.corpus(domains, 4_500, seed=1)))
    assert set(by_domain) == {domain.name for domain in domains}
    assert min(by_domain.values()) >= 0.8 * 4_500 / len(domains)


def _owners(texts, domains, corpus):
    home = {}
    for domain in domains:
        for intent in domain.train:
            for template in intent.templates:
                for filling in intent.fillings():
                    home[texts.sentence(template, filling)] = domain.name
    return [(home[text], text) for text in corpus]


def test_held_out_intents_mean_one_thing(domains):
    """Their templates name the same slots; otherwise a paraphrase would say less than the other."""
    for domain in domains:
        for intent in domain.held_out:
            slots = {frozenset(re.findall(r"\{(\w+)", template)) for template in intent.templates}
            assert len(slots) == 1
            assert len(intent.templates) == len(set(intent.templates)) == 4


def test_evaluation_and_corpus_share_no_value_of_a_slot(domains):
    for domain in domains:
        shown, kept_back = domain.train[0].slots, domain.held_out[0].slots
        assert set(shown) == set(kept_back)
        for name in shown:
            assert not [value for value in kept_back[name] if value in shown[name]]


def test_evaluation_and_corpus_share_no_sentence(texts, domains, corpus):
    pairs = texts.scored_pairs(domains, 1_000, seed=2)
    samples = texts.reranking(domains, 200, seed=2)
    seen = {text for first, second, _ in pairs for text in (first, second)}
    seen |= {text for sample in samples for text in (sample["query"], *sample["positive"], *sample["negative"])}
    assert not seen & set(corpus)


def test_pairs_have_every_degree_of_similarity(texts, domains):
    pairs = texts.scored_pairs(domains, 1_000, seed=2)
    assert len({(first, second) for first, second, _ in pairs}) == 1_000
    assert min(Counter(score for *_, score in pairs).values()) >= 80
    assert {score for *_, score in pairs} == {0.0, 1.0, 2.0, 3.0, 5.0}
    assert all(first != second for first, second, _ in pairs)


def test_reranking_samples_keep_right_and_wrong_apart(texts, domains):
    for sample in texts.reranking(domains, 200, seed=2):
        candidates = [*sample["positive"], *sample["negative"]]
        assert len(sample["positive"]) == 3
        assert len(sample["negative"]) >= 8
        assert len(candidates) == len(set(candidates))
        assert sample["query"] not in candidates


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("a(n) {x} is here", "An oven is here"),
        ("A(n) {x} is here", "An oven is here"),
        ("with a(n) used {x}", "With a used oven"),
        ("for a(n) new {x}", "For a new oven"),
    ],
)
def test_articles(texts, template, expected):
    assert texts.sentence(template, {"x": "oven"}) == expected
