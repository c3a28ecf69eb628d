"""The protocols are structural: an object with the members conforms, one that lacks a member does not."""

from __future__ import annotations

import numpy as np
import pytest

from embedkit.protocols import PairScorer, TextEncoder, VectorIndex


class Encoding:
    name, fingerprint, dimension, max_length = "n", "f", 2, 8

    def encode(self, texts):
        return np.ones((len(texts), 2), dtype=np.float32)


class Scoring:
    name, fingerprint, max_length = "n", "f", 8

    def predict(self, pairs):
        return np.ones(len(pairs), dtype=np.float32)


class Index:
    def __len__(self):
        return 0

    def search(self, queries, k):
        return queries, queries


def test_an_object_with_the_members_conforms():
    assert isinstance(Encoding(), TextEncoder)
    assert isinstance(Index(), VectorIndex)
    assert isinstance(Scoring(), PairScorer)
    assert not isinstance(Encoding(), PairScorer)
    assert not isinstance(Index(), TextEncoder)
    assert not isinstance(Encoding(), VectorIndex)


@pytest.mark.parametrize("member", ["name", "fingerprint", "dimension", "max_length", "encode"])
def test_an_object_without_a_member_does_not_conform(member):
    members = {name: value for name, value in vars(Encoding).items() if name != member and name[0] != "_"}
    assert not isinstance(type("Lacking", (), members)(), TextEncoder)
