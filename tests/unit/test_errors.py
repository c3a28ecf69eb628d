"""The error classes form the tree in the module's docstring."""

from __future__ import annotations

import builtins
import pickle
import random
import re

import pytest

from embedkit import errors
from embedkit.errors import ConfigError, EmbedkitError, GateError, StorageError

DRAWN = re.findall(r"^[ │]*[├└]── (\w+)(?: \((\w+)\))?", errors.__doc__ or "", flags=re.MULTILINE)
CLASSES = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]


def test_every_error_is_documented_and_public():
    assert {name for name, _ in DRAWN} | {"EmbedkitError"} == {each.__name__ for each in CLASSES}


@pytest.mark.parametrize("error", [EmbedkitError, ConfigError, errors.CollectionError])
@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("milvus:http://user:s3cret@db:19530#docs", "milvus:http://***@db:19530#docs"),
        ("qdrant:https://db/?api_key=s3cret&a=b#docs", "qdrant:https://db/?api_key=***&a=b#docs"),
        ("https://db/?token=s3cret", "https://db/?token=***"),
        ("s3://bucket/a@b.jsonl", "s3://bucket/a@b.jsonl"),
    ],
)
def test_no_message_holds_the_credentials_of_an_address(error, address, shown):
    assert str(error(f"there is nothing at {address}")) == f"there is nothing at {shown}"


@pytest.mark.parametrize(("name", "builtin"), DRAWN)
def test_every_error_is_an_embedkit_error_and_the_documented_builtin(name, builtin):
    error = getattr(errors, name)
    assert issubclass(error, EmbedkitError)
    assert error.__doc__
    if builtin:
        assert issubclass(error, getattr(builtins, builtin))


def test_branches_are_documented_under_their_base():
    lines = (errors.__doc__ or "").splitlines()
    parent = EmbedkitError
    for line in lines:
        if found := re.match(r"^( *│?  *)[├└]── (\w+)", line):
            error = getattr(errors, found[2])
            if "│" not in found[1] and len(found[1]) <= 4:
                parent = error
                assert EmbedkitError in error.__bases__
            else:
                assert parent in error.__bases__


def test_a_config_error_holds_all_problems():
    error = ConfigError(["first is wrong", "second is missing"])
    assert error.problems == ["first is wrong", "second is missing"]
    assert str(error) == "first is wrong; second is missing"
    assert ConfigError("only one").problems == ["only one"]


def test_a_gate_error_has_its_figures():
    error = GateError("missed", {"cosine": 0.9})
    for found in (error, pickle.loads(pickle.dumps(error))):
        assert found.figures == {"cosine": 0.9}
        assert str(found) == "missed"


def test_a_storage_error_keeps_the_number_and_is_a_sentence():
    error = StorageError(28, "cannot write x: No space left on device")
    for found in (error, pickle.loads(pickle.dumps(error))):
        assert found.errno == 28
        assert str(found) == "cannot write x: No space left on device"


@pytest.mark.parametrize("error", [kind for kind in CLASSES if kind is not GateError])
def test_errors_can_be_sent_between_processes(error):
    made = error("what happened")
    again = pickle.loads(pickle.dumps(made))
    assert type(again) is error
    assert str(again) == "what happened"


def test_a_similar_name_is_suggested_else_the_alternative():
    assert errors.did_you_mean("yaer", iter(["lang", "year"]), "none") == "did you mean 'year'?"
    assert errors.did_you_mean("xyzzy", {"lang": 1}, "none") == "none"


def test_names_that_are_too_long_to_be_meant_are_not_compared(monkeypatch):
    generator = random.Random(3)
    compare, compared = errors.difflib.get_close_matches, []
    for _ in range(300):
        known = ["".join(generator.choices("ab", k=generator.randint(1, 9))) for _ in range(4)]
        name = "".join(generator.choices("ab", k=generator.randint(1, 30)))
        near = compare(name, known, n=1)
        assert errors.did_you_mean(name, known, "none") == (f"did you mean {near[0]!r}?" if near else "none")
    monkeypatch.setattr(errors.difflib, "get_close_matches", lambda name, *_, **__: compared.append(name) or [])
    assert errors.did_you_mean("q" * 9_000_000, ["query"], "none") == "none"
    assert not compared  # of which difflib would index every character first
