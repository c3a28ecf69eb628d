"""Arguments of the functions that users call: what each kind takes, and an error of embedkit's own for the rest.

The kinds are texts, counts, choices, flags, paths and arrays; a function is called with valid values for all its
arguments but one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedkit import Collection, CrossEncoder, Encoder, cluster, deduplicate, similar_pairs
from embedkit.errors import EmbedkitError
from embedkit.evaluation.catalogue import load_task

TEXTS = ["a dog", "the sea"]
PAIRS = [("a dog", "the dog"), ("the sea", "a ship")]
HOSTILE = "'] or id in [\"x\\\n\0\x1b[31m{y}%_../"


class Kit:
    """Models, a collection, and folders that are new each time."""

    def __init__(self, folder: Path, bundle: Path, cross_bundle: Path) -> None:
        self.folder, self.bundle, self.count = folder, bundle, 0
        self.encoder, self.scorer = Encoder.load(bundle), CrossEncoder.load(cross_bundle)
        self.collection = Collection.build(TEXTS, encoder=self.encoder, path=self.new(), index="exact")

    def new(self) -> Path:
        self.count += 1
        return self.folder / f"new-{self.count}"


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory, toy_bundle: Path, toy_cross_bundle: Path) -> Kit:
    return Kit(tmp_path_factory.mktemp("kit"), toy_bundle, toy_cross_bundle)


# Name -> the function, and valid values of its arguments.
CALLS: dict[str, Callable[[Kit], tuple[Callable[..., Any], dict[str, Any]]]] = {
    "load": lambda kit: (Encoder.load, {"source": kit.bundle}),
    "encode": lambda kit: (kit.encoder.encode, {"texts": TEXTS}),
    "encode_query": lambda kit: (kit.encoder.encode_query, {"texts": TEXTS}),
    "encode_document": lambda kit: (kit.encoder.encode_document, {"texts": TEXTS}),
    "encode_batches": lambda kit: (lambda **given: list(kit.encoder.encode_batches(**given)), {"texts": TEXTS}),
    "windows": lambda kit: (lambda **given: list(kit.encoder.windows(**given)), {"texts": TEXTS}),
    "similarity": lambda kit: (kit.encoder.similarity, {name: kit.encoder.encode(TEXTS) for name in "ab"}),
    "predict": lambda kit: (kit.scorer.predict, {"pairs": PAIRS}),
    "rank": lambda kit: (kit.scorer.rank, {"query": "a dog", "documents": TEXTS}),
    "build": lambda kit: (Collection.build, {"documents": TEXTS, "encoder": kit.encoder, "path": kit.new()}),
    "open": lambda kit: (Collection.open, {"path": kit.collection.path}),
    "upsert": lambda kit: (kit.collection.upsert, {"documents": [("1", "a dog")]}),
    "delete": lambda kit: (kit.collection.delete, {"ids": ["9"]}),
    "search": lambda kit: (kit.collection.search, {"query": "a dog"}),
    "search_embeddings": lambda kit: (
        kit.collection.search_embeddings,
        {"embeddings": kit.encoder.encode(TEXTS)},
    ),
    "deduplicate": lambda kit: (deduplicate, {"texts": TEXTS, "encoder": kit.encoder}),
    "cluster": lambda kit: (cluster, {"texts": TEXTS, "encoder": kit.encoder}),
    "similar_pairs": lambda kit: (similar_pairs, {"texts": TEXTS, "encoder": kit.encoder}),
    "load_task": lambda kit: (load_task, {"name": "sts", "data": str(kit.folder)}),
}

WRONG: dict[str, list[Callable[[], Any]]] = {
    "texts": [
        lambda: None,
        lambda: 5,
        lambda: b"a dog",
        object,
        lambda: ["a dog", None],
        lambda: ["a dog", b"x"],
        lambda: [1.0, 2.0],
        lambda: np.zeros((2, 3)),
    ],
    "count": [lambda: 2.5, lambda: "2", lambda: True, lambda: -1, lambda: 0, lambda: float("nan"), lambda: [2]],
    "choice": [lambda: "nonsense", lambda: 5, lambda: ["exact"], object, lambda: HOSTILE],
    "flag": [lambda: 1, lambda: "yes", list, object],
    "path": [lambda: 5, object, lambda: "", lambda: "a\0b", lambda: ["a"]],
    "array": [
        lambda: "a dog",
        object,
        lambda: np.zeros(3),
        lambda: np.array(TEXTS, dtype=object),
        lambda: np.full((1, 16), np.nan, dtype=np.float32),
        lambda: np.zeros((1, 3), dtype=np.float32),
    ],
}

ARGUMENTS = {
    "texts": [
        *((name, "texts") for name in ("encode", "encode_query", "encode_document", "encode_batches", "windows")),
        *((name, "texts") for name in ("deduplicate", "cluster", "similar_pairs")),
        *(("rank", "documents"), ("build", "documents"), ("upsert", "documents"), ("delete", "ids")),
        *(("search", "query"), ("predict", "pairs")),
    ],
    "count": [
        *(
            ("load", "threads"),
            ("load", "max_tokens_per_batch"),
            ("encode", "batch_size"),
            ("encode", "truncate_dim"),
        ),
        *(("encode_batches", "batch_size"), ("rank", "top_k"), ("search", "k"), ("search", "candidates")),
        *(("search_embeddings", "k"), ("cluster", "min_size"), ("similar_pairs", "max_pairs")),
    ],
    "choice": [
        *(("encode", "precision"), ("encode", "on_overflow"), ("encode", "prompt_name"), ("build", "index")),
        *(("predict", "activation_fn"), ("search", "mode"), ("load_task", "convention"), ("load", "instructions")),
    ],
    "flag": [
        *(("encode", "normalize_embeddings"), ("encode", "show_progress_bar"), ("build", "replace")),
        *(("rank", "return_documents"), ("upsert", "merge")),
    ],
    "path": [("load", "source"), ("build", "path"), ("open", "path"), ("load_task", "data")],
    "array": [("similarity", "a"), ("similarity", "b"), ("search_embeddings", "embeddings")],
}
CASES = [(*case, kind) for kind, cases in ARGUMENTS.items() for case in cases]


@pytest.mark.parametrize(("call", "argument", "kind"), CASES, ids=lambda part: part)
def test_a_value_of_another_kind_is_an_error_of_embedkits_own(
    kit: Kit, call: str, argument: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a text that is taken as the path of a new folder
    for make in WRONG[kind]:
        function, valid = CALLS[call](kit)
        with pytest.raises(EmbedkitError) as caught:
            function(**{**valid, argument: make()})
        assert str(caught.value), make()


def forms() -> dict[str, Callable[[], Any]]:
    pandas, pyarrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    return {
        "tuple": lambda: tuple(TEXTS),
        "generator": lambda: (text for text in TEXTS),
        "array": lambda: np.array(TEXTS),
        "array of objects": lambda: np.array(TEXTS, dtype=object),
        "series": lambda: pandas.Series(TEXTS, index=[7, 9]),
        "arrow": lambda: pyarrow.array(TEXTS),
    }


@pytest.mark.parametrize(("call", "argument"), [case for case in ARGUMENTS["texts"] if case[0] not in
                                                ("predict", "upsert")])  # fmt: skip
def test_texts_come_in_every_form_that_holds_texts(kit: Kit, call: str, argument: str) -> None:
    for make in forms().values():
        function, valid = CALLS[call](kit)
        function(**{**valid, argument: make()})


@pytest.mark.parametrize(
    "text", ["", HOSTILE, "x" * 5000, np.str_("a dog")], ids=["empty", "hostile", "long", "numpy"]
)
@pytest.mark.parametrize("call", ["encode", "search", "rank"])
def test_any_text_is_a_text(kit: Kit, call: str, text: str) -> None:
    function, valid = CALLS[call](kit)
    function(**{**valid, {"encode": "texts"}.get(call, "query"): text})


@pytest.mark.parametrize(("call", "argument"), ARGUMENTS["count"])
def test_counts_may_be_integers_of_numpy(kit: Kit, call: str, argument: str) -> None:
    function, valid = CALLS[call](kit)
    function(**{**valid, argument: np.int64(16)})
