"""Every argument of every public function, with every kind of value: a result, or an error of embedkit's own.

``ROWS`` has a row for each public function, which names the kind of each of its arguments; ``Kind.takes`` names
the cells of ``CELLS`` that a kind of argument takes. All other cells are errors of embedkit's tree. A public
function or argument without a row fails.
"""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from toys import write_parquet

import embedkit
from embedkit import Collection, CrossEncoder, Encoder, JoinedEncoder, integrations
from embedkit.errors import EmbedkitError
from embedkit.evaluation.catalogue import load_task
from embedkit.evaluation.tasks import evaluate
from embedkit.runtime.joined import JoinedSpace
from embedkit.serving.retrieval import ExactIndex, SearchOptions, similar
from embedkit.serving.retrieval.search import Encode
from embedkit.serving.retrieval.splitting import split_documents

pandas = pytest.importorskip("pandas")
pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

TEXTS = ["a dog", "the sea"]
PAIRS = [("a dog", "the dog"), ("the sea", "a ship"), ("music", "the end")]
DOCUMENTS = [{"id": name, "text": text, "lang": "en"} for name, text in zip("ab", TEXTS, strict=True)]
HOSTILE = "'] or id in [\"x\\\n\0\x1b[31m{y}%_../"

CELLS: dict[str, Callable[[], Any]] = {
    "empty list": list,
    "empty text": str,
    "empty mapping": dict,
    "None": lambda: None,
    "object": object,
    "function": lambda: len,
    "class": lambda: Encoder,
    "bytes": lambda: b"a dog",
    "True": lambda: True,
    "float": lambda: 2.5,
    "NaN": lambda: float("nan"),
    "zero": lambda: 0,
    "minus one": lambda: -1,
    "huge": lambda: 2**70,
    "endless": lambda: 10**5000,  # more digits than Python writes
    "numpy integer": lambda: np.int64(2),
    "numpy float": lambda: np.float32(0.5),
    "numpy boolean": lambda: np.True_,
    "numpy text": lambda: np.str_("a dog"),
    "0-d integer": lambda: np.array(2),
    "0-d text": lambda: np.array("a dog"),
    "array of texts": lambda: np.array(TEXTS),
    "array of objects": lambda: np.array(TEXTS, dtype=object),
    "matrix": lambda: np.zeros((2, 3)),
    "array of integers": lambda: np.arange(3),
    "Series": lambda: pandas.Series(TEXTS, index=[7, 9]),
    "table": lambda: pandas.DataFrame({"text": TEXTS}),
    "pyarrow array": lambda: pyarrow.array(TEXTS),
    "pyarrow scalar": lambda: pyarrow.scalar("a dog"),
    "generator": lambda: (text for text in TEXTS),
    "duplicates": lambda: ["a dog", "a dog"],
    "with None": lambda: ["a dog", None],
    "with bytes": lambda: ["a dog", b"x"],
    "lone tuple": lambda: ("a dog", "the sea"),
    "list of pairs": lambda: [("a dog", "the sea")],
    "list of numbers": lambda: [1.0, 2.0],
    "hostile text": lambda: HOSTILE,
    "hostile texts": lambda: [HOSTILE, "it's"],
    "surrogate": lambda: "\ud800",
    "long text": lambda: "x" * 5000,
    "mapping of an object": lambda: {"a dog": object()},
    "mapping of NaN": lambda: {"lang": float("nan")},
    "mapping of endless": lambda: {"lang": 10**5000},
    "list of endless": lambda: [10**5000],
    "mapping of itself": lambda: {"lang": {"eq": {"eq": {}}}},
}

ONE_TEXT = {"empty text", "numpy text", "hostile text", "long text"}
SEVERAL_TEXTS = {
    "empty list",
    "array of texts",
    "array of objects",
    "Series",
    "pyarrow array",
    "generator",
    "duplicates",
    "lone tuple",
    "hostile texts",
}
INTEGERS = {"numpy integer", "0-d integer"}
HUGE = {"huge", "endless"}
FLAGS = {"True", "numpy boolean"}
NUMBERS = {*INTEGERS, "float", "numpy float"}


class Kit:
    """What the valid calls need; each folder it names is new."""

    def __init__(self, folder: Path, toy_bundle: Path, toy_cross_bundle: Path) -> None:
        self.folder, self.count = folder, 0
        self.encoder, self.scorer = Encoder.load(toy_bundle), CrossEncoder.load(toy_cross_bundle)
        self.bundle, self.cross_bundle = toy_bundle, toy_cross_bundle
        self.collection = self.built()
        self.changing = self.built()
        self.page = folder / "page.txt"
        self.page.write_text("a dog", encoding="utf-8")
        self.index = ExactIndex.build(self.encoder.encode(TEXTS))
        self.space = folder / "space.npz"
        width, ones = self.encoder.dimension, np.ones(1, dtype=np.float32)
        means, axes = (np.zeros(width, dtype=np.float32),), np.eye(width, dtype=np.float32)
        JoinedSpace(name="toy", means=means, weights=ones, axes=axes).save(self.space)
        self.stored = folder / "stored"
        self.collection.compact()
        self.scored = folder / "scored.tsv"
        rows = [f"{number / 4}\t{first}\t{second}" for number, (first, second) in enumerate(PAIRS)]
        self.scored.write_text("score\tsentence1\tsentence2\n" + "\n".join(rows))
        self.task = load_task(str(self.scored))
        self.shards = folder / "in" / "texts.parquet"
        self.shards.parent.mkdir()
        write_parquet(self.shards, {"text": TEXTS})

    def new(self) -> Path:
        self.count += 1
        return self.folder / f"new-{self.count}"

    def built(self) -> Collection:
        return Collection.build(DOCUMENTS, encoder=self.encoder, path=self.new(), index="exact")

    def embeddings(self) -> Any:
        return self.encoder.encode(TEXTS)


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory, toy_bundle: Path, toy_cross_bundle: Path) -> Kit:
    return Kit(tmp_path_factory.mktemp("kit"), toy_bundle, toy_cross_bundle)


@dataclass(frozen=True)
class Kind:
    """A kind of argument.

    Attributes:
        valid: makes a valid value.
        takes: the cells that give a result, too.
        either: the cells that depend on the machine: a result or an error of embedkit's own.
    """

    valid: Callable[[Kit], Any]
    takes: frozenset[str] = frozenset()
    either: frozenset[str] = frozenset()

    def taking(self, *cells: str) -> Kind:
        """The same kind, where these cells are valid, too."""
        return replace(self, takes=self.takes | set(cells))

    def refusing(self, *cells: str) -> Kind:
        """The same kind without these cells."""
        return replace(self, takes=self.takes - set(cells))

    def of(self, valid: Any) -> Kind:
        """The same kind with another valid value."""
        return replace(self, valid=lambda _: valid)


def kind(valid: Any, *cells: str) -> Kind:
    return Kind(lambda _: valid, frozenset(cells))


def made(valid: Callable[[Kit], Any], *cells: str) -> Kind:
    return Kind(valid, frozenset(cells))


TEXT = kind("a dog", *ONE_TEXT)
TEXTS_GIVEN = kind(TEXTS, *SEVERAL_TEXTS)
ANY_TEXTS = TEXTS_GIVEN.taking(*ONE_TEXT)
ENCODED = ANY_TEXTS.taking("0-d text")
COUNT = kind(2, *INTEGERS, *HUGE)
COUNT_OR_NONE = COUNT.taking("None")
FLAG = kind(True, *FLAGS)
FLAG_OR_NONE = FLAG.taking("None")
NUMBER = kind(1.0, *NUMBERS)
IGNORED = kind(None, *CELLS)
DOCUMENTS_GIVEN = kind(DOCUMENTS, *SEVERAL_TEXTS, "list of pairs")
ENCODER = made(lambda kit: kit.encoder)
EMBEDDINGS = made(Kit.embeddings)
BUNDLE = made(lambda kit: str(kit.bundle))
NEW_FOLDER = Kind(lambda kit: kit.new(), frozenset({"numpy text"}), frozenset({"surrogate"}))

# The kind of an argument by its name; a row names the kinds of those that differ in its function.
KINDS: dict[str, Kind] = {
    "a": EMBEDDINGS,
    "activation_fn": kind("sigmoid", "None"),
    "b": EMBEDDINGS,
    "batch_size": COUNT_OR_NONE,
    "candidates": COUNT_OR_NONE.of(50),
    "effort": NUMBER.taking("huge"),
    "embeddings": EMBEDDINGS,
    "encoder": ENCODER,
    "file": kind(None, "None"),
    "filter": kind(None, "None", "empty mapping"),
    "mode": kind(None, "None"),
    "id_column": kind(None, "None"),
    "ids": ANY_TEXTS.taking("surrogate"),
    "index": kind("exact"),
    "instructions": kind(None, "None"),
    "k": COUNT,
    "max_pairs": COUNT,
    "max_tokens": COUNT_OR_NONE.refusing(*HUGE),
    "max_tokens_per_batch": COUNT_OR_NONE,
    "merge": FLAG,
    "metadata_columns": kind(None, "None", "empty list"),
    "min_size": COUNT,
    "model": BUNDLE,
    "most": COUNT,
    "normalize_embeddings": FLAG,
    "on_overflow": kind("truncate"),
    "overlap": kind(0, "zero"),  # less than max_tokens
    "pairs": kind(PAIRS, "empty list", "list of pairs"),
    "precision": kind("float32"),
    "processes": COUNT_OR_NONE.refusing(*HUGE),
    "prompt": kind(None, "None", *ONE_TEXT),
    "prompt_name": kind(None, "None"),
    "providers": kind(None, "None"),
    "queries": made(lambda kit: kit.encoder, "None"),
    "query": TEXT,
    "replace": FLAG,
    "rerank_weight": kind(1.0, "None", "zero", "numpy float"),
    "return_documents": FLAG,
    "rows": made(Kit.embeddings, "matrix"),
    "show_progress_bar": FLAG_OR_NONE,
    "skip_empty": FLAG,
    "special_tokens": FLAG,
    "text": TEXT,
    "text_column": kind("text"),
    "texts": TEXTS_GIVEN,
    "threads": COUNT_OR_NONE,
    "threshold": kind(0.9, "zero", "minus one", "numpy float"),
    "top_k": COUNT_OR_NONE,
    "truncate_dim": COUNT_OR_NONE.refusing(*HUGE),
}
ENCODE = ["batch_size", "normalize_embeddings", "prompt_name", "prompt", "truncate_dim", "precision"]
ENCODE += ["show_progress_bar", "on_overflow"]
PREDICT = ["batch_size", "show_progress_bar", "activation_fn", "on_overflow"]
LOAD = ["file", "threads", "providers", "max_tokens_per_batch", "instructions"]
SEARCH = ["mode", "filter", "rerank_weight", "candidates", "effort"]
COLUMNS = ["text_column", "id_column", "skip_empty", "metadata_columns", "show_progress_bar"]
SIMILAR = ["texts", "encoder", "threshold", "index", "show_progress_bar"]


class Row(NamedTuple):
    """A public function, and the kind of each of its arguments.

    Attributes:
        function: the function, from the kit.
        arguments: its arguments, named as in its signature; ``*`` stands for ``**options``.
        run: what is done with its result, for iterators and generators.
    """

    function: Callable[[Kit], Callable[..., Any]]
    arguments: Mapping[str, Kind]
    run: Callable[[Any], Any] = lambda result: result


def row(function: Callable[[Kit], Any], *names: str, run: Callable[[Any], Any] = lambda r: r, **own: Kind) -> Row:
    """A row whose arguments are of the kinds of their names, or of kinds of their own."""
    return Row(function, {name: KINDS[name] for name in names} | own, run)


def encoder_row(method: str, *names: str, **own: Kind) -> Row:
    return row(lambda kit: getattr(kit.encoder, method), *names, run=listed, **own)


def listed(result: Any) -> Any:
    return list(result)


def closed(result: Any) -> None:
    result.close()


def steps_of(kit: Kit) -> Callable[..., Any]:
    """A search by steps, whose models are those of the kit."""

    def search(query: Any, **options: Any) -> Any:
        steps = kit.collection.search_steps(query, SearchOptions(**options))
        try:
            wanted = next(steps)
            while True:
                is_encode = isinstance(wanted, Encode)
                ones = [] if is_encode else [np.ones(len(texts)) for texts in wanted.texts]
                answer = kit.encoder.encode(list(wanted.queries)) if is_encode else ones
                wanted = steps.send(answer)
        except StopIteration as done:
            return done.value

    return search


def integration(name: str) -> Any:
    return importlib.import_module(f"embedkit.integrations.{name}")


def adapter(module: str, name: str, **settings: Any) -> Any:
    return getattr(integration(module), name)(**settings)


def adapter_row(module: str, name: str) -> Row:
    return row(lambda _: lambda **settings: adapter(module, name, **settings), "model", "truncate_dim", "threads")


def method_row(module: str, name: str, method: str, *names: str, **options: Any) -> Row:
    """A method of an adapter of the toy bundle."""
    function = lambda kit: getattr(adapter(module, name, model=str(kit.bundle)), method)  # noqa: E731
    return row(function, *names, **options)


def adaptation() -> Any:
    pytest.importorskip("torch")
    return importlib.import_module("embedkit.adaptation")


def adaptation_settings(kit: Kit) -> Any:
    settings = {"corpus": [{"path": str(kit.scored)}], "teacher": {"source": "tiny"}}
    config = adaptation().adaptation_config(kit.bundle, settings)
    return replace(config, student=replace(config.student, source=None))


def bulk() -> Any:
    return importlib.import_module("embedkit.serving.bulk")


ROWS = {
    "embedkit.Encoder.load": row(lambda _: Encoder.load, *LOAD, source=made(lambda kit: kit.bundle)),
    "embedkit.Encoder.encode": encoder_row("encode", *ENCODE, texts=ENCODED),
    "embedkit.Encoder.encode_query": encoder_row("encode_query", *ENCODE, texts=ENCODED),
    "embedkit.Encoder.encode_document": encoder_row("encode_document", *ENCODE, texts=ENCODED),
    "embedkit.Encoder.encode_batches": encoder_row("encode_batches", "texts", *ENCODE),
    "embedkit.Encoder.encode_chunk": encoder_row("encode_chunk", "texts", *ENCODE, first=COUNT.taking("zero")),
    "embedkit.Encoder.pool": row(lambda kit: kit.encoder.pool, "processes", "threads", run=closed),
    "embedkit.Encoder.tokenize": encoder_row("tokenize", "texts", "prompt_name", role=kind("query", "None")),
    "embedkit.Encoder.unknown_share": encoder_row("unknown_share", "texts"),
    "embedkit.Encoder.token_spans": encoder_row("token_spans", "texts", "special_tokens", "prompt_name"),
    "embedkit.Encoder.windows": encoder_row(
        *("windows", "texts", "max_tokens", "overlap", "prompt_name"),
        role=kind("document", "None"),
        headings=Kind(lambda _: None, frozenset({"None"}), frozenset(SEVERAL_TEXTS)),
    ),
    "embedkit.Encoder.check_token_ids": row(
        lambda kit: kit.encoder.check_token_ids, ids=kind([[2, 3]], "empty list")
    ),
    "embedkit.Encoder.encode_tokens": row(
        lambda kit: kit.encoder.encode_tokens, tokens=made(lambda kit: kit.encoder.tokenize(TEXTS))
    ),
    "embedkit.Encoder.pack": row(lambda kit: kit.encoder.pack, "embeddings", "precision", "truncate_dim"),
    "embedkit.Encoder.similarity": row(
        lambda kit: kit.encoder.similarity, a=EMBEDDINGS.taking("empty list"), b=EMBEDDINGS.taking("empty list")
    ),
    "embedkit.JoinedEncoder": row(
        lambda _: JoinedEncoder, encoders=made(lambda kit: [kit.encoder]), space=made(lambda kit: kit.space)
    ),
    "embedkit.JoinedEncoder.encode": row(
        lambda kit: JoinedEncoder([kit.encoder], kit.space).encode, texts=ANY_TEXTS
    ),
    "embedkit.CrossEncoder.load": row(
        lambda _: CrossEncoder.load, *LOAD, source=made(lambda kit: kit.cross_bundle)
    ),
    "embedkit.CrossEncoder.predict": row(
        lambda kit: kit.scorer.predict,
        *PREDICT,
        pairs=kind(
            PAIRS,
            *("empty list", "list of pairs", "duplicates", "hostile texts", "lone tuple"),
            *("array of texts", "array of objects"),  # of two, as a pair
        ),
    ),
    "embedkit.CrossEncoder.tokenize": row(lambda kit: kit.scorer.tokenize, "pairs"),
    "embedkit.CrossEncoder.predict_tokens": row(
        lambda kit: kit.scorer.predict_tokens, "activation_fn", tokens=made(lambda kit: kit.scorer.tokenize(PAIRS))
    ),
    "embedkit.CrossEncoder.rank": row(
        lambda kit: kit.scorer.rank, "query", "top_k", "return_documents", *PREDICT, documents=TEXTS_GIVEN
    ),
    "embedkit.Collection.build": row(
        lambda _: Collection.build,
        *COLUMNS,
        *("encoder", "queries", "index", "replace"),
        documents=DOCUMENTS_GIVEN.refusing("empty list"),
        embeddings=kind(None, "None"),
        path=NEW_FOLDER,
        lexical=FLAG.of(False),
        source=TEXT.taking("None"),
        queries_source=TEXT.taking("None"),
    ),
    "embedkit.Collection.open": row(
        lambda _: Collection.open,
        "queries",
        path=made(lambda kit: kit.collection.path),
        encoder=ENCODER.taking("None"),
    ),
    "embedkit.Collection.describe": row(lambda _: Collection.describe, path=made(lambda kit: kit.collection.path)),
    "embedkit.Collection.copy": row(lambda kit: kit.collection.copy, path=NEW_FOLDER),
    "embedkit.Collection.get": row(lambda kit: kit.collection.get, "ids"),
    "embedkit.Collection.delete": row(lambda kit: kit.changing.delete, "ids", filter=kind(None, "None")),
    "embedkit.Collection.find": row(
        lambda kit: kit.collection.find, filter=kind(None, "None", "empty mapping"), limit=COUNT_OR_NONE
    ),
    "embedkit.Collection.count": row(lambda kit: kit.collection.count, filter=kind(None, "None", "empty mapping")),
    "embedkit.Collection.update": row(
        lambda kit: kit.changing.update, metadata=kind({}, "empty mapping", "mapping of itself")
    ),
    "embedkit.Collection.upsert": row(
        lambda kit: kit.changing.upsert,
        *COLUMNS,
        "merge",
        documents=kind(DOCUMENTS, "empty list", "list of pairs"),
        embeddings=kind(None, "None"),
    ),
    "embedkit.Collection.sync": row(
        lambda kit: kit.changing.sync,
        *("max_tokens", "show_progress_bar"),
        strict=FLAG,
        follow_links=FLAG,
        folders=made(lambda kit: str(kit.page)),
        remove=FLAG,
        overlap=kind(None, "None", "zero"),
    ),
    "embedkit.Collection.compact": row(
        lambda kit: kit.changing.compact,
        "show_progress_bar",
        index=kind(None, "None"),
        lexical=FLAG_OR_NONE.of(False),
    ),
    "embedkit.Collection.search": row(
        lambda kit: kit.collection.search,
        *SEARCH,
        query=ANY_TEXTS,
        k=COUNT.refusing(*HUGE),  # more than the candidates
        rerank=made(lambda kit: kit.scorer, "None"),
    ),
    "embedkit.Collection.search_steps": row(
        steps_of, *SEARCH, query=ANY_TEXTS, k=COUNT.refusing(*HUGE), rerank=IGNORED
    ),
    "embedkit.Collection.encode_queries": row(lambda kit: kit.collection.encode_queries, queries=ANY_TEXTS),
    "embedkit.Collection.search_embeddings": row(
        lambda kit: kit.collection.search_embeddings, "embeddings", "k", "filter", "effort"
    ),
    "embedkit.Collection.sample": row(lambda kit: kit.collection.sample, "most"),
    "embedkit.serving.retrieval.ExactIndex": row(lambda _: ExactIndex, "rows"),
    "embedkit.serving.retrieval.ExactIndex.build": row(
        lambda _: ExactIndex.build, "rows", show_progress_bar=IGNORED
    ),
    "embedkit.serving.retrieval.ExactIndex.load": row(lambda _: ExactIndex.load, "rows", _=IGNORED),
    "embedkit.serving.retrieval.ExactIndex.save": row(lambda kit: kit.index.save, path=IGNORED),
    "embedkit.serving.retrieval.ExactIndex.search": row(
        lambda kit: kit.index.search,
        "k",
        queries=EMBEDDINGS,
        allowed=kind(None, "None"),
        effort=IGNORED.of(1.0),
    ),
    "embedkit.serving.retrieval.SearchOptions": row(
        lambda _: SearchOptions,
        *SEARCH[2:],
        mode=KINDS["mode"],
        filter=IGNORED,
        k=COUNT.refusing(*HUGE),
        rerank=IGNORED,
    ),
    "embedkit.serving.retrieval.splitting.split_documents": row(
        lambda _: split_documents,
        *("encoder", "max_tokens", "overlap", "text_column", "id_column", "skip_empty"),
        strict=FLAG,
        follow_links=FLAG,
        source=DOCUMENTS_GIVEN,
        run=listed,
    ),
    "embedkit.similar_pairs": row(lambda _: similar.similar_pairs, *SIMILAR, "max_pairs"),
    "embedkit.deduplicate": row(lambda _: similar.deduplicate, *SIMILAR),
    "embedkit.cluster": row(lambda _: similar.cluster, *SIMILAR, "min_size"),
    "embedkit.serving.retrieval.similar.Groups.members": row(
        lambda kit: similar.deduplicate(TEXTS, encoder=kit.encoder).members, "min_size"
    ),
    "embedkit.evaluation.catalogue.load_task": row(
        lambda _: load_task,
        name=made(lambda kit: str(kit.scored)),
        data=kind(None, "None"),
        convention=kind(None, "None"),
        text=kind("raw"),
    ),
    "embedkit.evaluation.tasks.evaluate": row(
        lambda _: evaluate, model=ENCODER, task=made(lambda kit: kit.task), progress=FLAG_OR_NONE
    ),
    "embedkit.adaptation.adapt": row(
        lambda _: adaptation().adapt,
        # Without student.source, which is an error only after the other arguments are checked.
        config=made(adaptation_settings),
        folder=made(lambda kit: kit.new()),
        output=made(lambda kit: kit.new()),
        control=kind(None),
    ),
    "embedkit.adaptation.adaptation_config": row(
        lambda _: adaptation().adaptation_config,
        source=made(lambda kit: kit.bundle),
        changes=made(lambda kit: {"corpus": [{"path": str(kit.scored)}], "teacher": {"source": "tiny"}}),
    ),
    "embedkit.serving.bulk.BulkEncoding.prepare": row(
        lambda _: bulk().BulkEncoding.prepare,
        *("text_column", "prompt_name", "truncate_dim", "precision", "on_overflow", "threads", "providers"),
        source=made(lambda kit: kit.shards),
        output=NEW_FOLDER,
        model=made(lambda kit: kit.bundle),
        columns=kind(None, "None", "empty list"),
        rows_per_shard=COUNT,
    ),
    "embedkit.serving.bulk.BulkEncoding.run": row(
        lambda kit: bulk().BulkEncoding.prepare(kit.shards, kit.new(), model=kit.bundle).run,
        "show_progress_bar",
        engine=kind("local"),
        workers=kind(None, "None", *INTEGERS),
    ),
    "embedkit.integrations.sklearn.TextEmbedder": row(
        lambda _: lambda **settings: integration("sklearn").TextEmbedder(**settings).transform(TEXTS),
        *("model", "truncate_dim", "prompt_name", "threads"),
    ),
    "embedkit.integrations.sklearn.TextEmbedder.fit": method_row(
        "sklearn", "TextEmbedder", "fit", X=IGNORED, y=IGNORED
    ),
    "embedkit.integrations.sklearn.TextEmbedder.transform": method_row(
        "sklearn", "TextEmbedder", "transform", X=TEXTS_GIVEN
    ),
    "embedkit.integrations.sklearn.TextEmbedder.get_feature_names_out": method_row(
        "sklearn", "TextEmbedder", "get_feature_names_out", input_features=IGNORED
    ),
    "embedkit.integrations.langchain.EmbedkitEmbeddings": adapter_row("langchain", "EmbedkitEmbeddings"),
    "embedkit.integrations.langchain.EmbedkitEmbeddings.embed_documents": method_row(
        "langchain", "EmbedkitEmbeddings", "embed_documents", "texts"
    ),
    "embedkit.integrations.langchain.EmbedkitEmbeddings.embed_query": method_row(
        "langchain", "EmbedkitEmbeddings", "embed_query", "text"
    ),
    "embedkit.integrations.llama_index.EmbedkitEmbedding": row(
        lambda _: lambda **settings: integration("llama_index").EmbedkitEmbedding(**settings),
        *("truncate_dim", "threads"),
        model=BUNDLE.taking("None"),
        embed_batch_size=COUNT.refusing(*HUGE),
        model_name=BUNDLE,
    ),
    "embedkit.integrations.mteb.MtebEncoder": row(
        lambda _: lambda **model: integration("mteb").MtebEncoder(**model), "encoder"
    ),
    "embedkit.integrations.mteb.MtebEncoder.encode": row(
        lambda kit: integration("mteb").MtebEncoder(kit.encoder).encode,
        "precision",
        inputs=kind([{"text": TEXTS}], "empty list"),
        prompt_type=kind("query", "None"),
    ),
    "embedkit.integrations.mteb.MtebCrossEncoder": row(
        lambda _: lambda **model: integration("mteb").MtebCrossEncoder(**model),
        scorer=made(lambda kit: kit.scorer),
    ),
    "embedkit.integrations.mteb.MtebCrossEncoder.predict": row(
        lambda kit: integration("mteb").MtebCrossEncoder(kit.scorer).predict,
        inputs1=kind([{"text": TEXTS}]),
        inputs2=kind([{"text": TEXTS}]),
    ),
}

# Of LlamaIndex itself, and the field that the adapter sets whatever is given.
OF_LLAMA_INDEX = {"callback_manager", "embeddings_cache", "fingerprint", "num_workers", "rate_limiter"}
NOT_CALLED_BY_USERS = {
    # `embedkit index` calls it.
    "embedkit.Collection.write_pages",
    # Their own functions make them.
    "embedkit.Encoder",
    "embedkit.CrossEncoder",
    "embedkit.Collection",
    "embedkit.serving.bulk.BulkEncoding",
    # Results and descriptions, without checks.
    "embedkit.adaptation.Adaptation",
    "embedkit.serving.bulk.Cost",
    "embedkit.serving.bulk.Job",
    "embedkit.serving.retrieval.Document",
    "embedkit.serving.retrieval.Hit",
    "embedkit.serving.retrieval.Hit.of",
    "embedkit.serving.retrieval.Hits",
    "embedkit.serving.retrieval.similar.Groups",
    "embedkit.serving.retrieval.similar.SimilarPairs",
    # MTEB passes the results of `encode`.
    "embedkit.integrations.mteb.MtebEncoder.similarity",
    "embedkit.integrations.mteb.MtebEncoder.similarity_pairwise",
}


def public_names() -> Iterator[tuple[str, Any]]:
    """The names of the reference of the API, and those that packages export."""
    pages = ast.parse((Path(__file__).parents[2] / "docs" / "hooks" / "pages.py").read_text(encoding="utf-8"))
    (api,) = (
        ast.literal_eval(node.value)
        for node in pages.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "API"
    )
    modules: dict[str, list[str]] = {}
    for _, module, names in api.values():
        modules.setdefault(module, []).extend(names)
    for place in Path(integrations.__file__).parent.glob("[a-z]*.py"):
        modules.setdefault(f"{integrations.__name__}.{place.stem}", [])
    modules["embedkit"] = [name for name in embedkit.__all__ if name != "__version__"]
    for module in ("embedkit.serving.retrieval", "embedkit.serving.bulk"):
        modules[module] = importlib.import_module(module).__all__
    seen = set()
    for module, names in sorted(modules.items()):
        try:
            home = importlib.import_module(module)
        except EmbedkitError:  # of an integration whose package is not installed
            continue
        for name in names or home.__all__:
            value = getattr(home, name)
            if value not in seen:
                seen.add(value)
                yield f"{module}.{name}", value


def public_functions() -> Iterator[tuple[str, inspect.Signature]]:
    for name, value in public_names():
        if not inspect.isclass(value):
            yield name, inspect.signature(value)
            continue
        if issubclass(value, Exception) or getattr(value, "_is_protocol", False):
            continue
        yield name, signature_of(value)
        for member in dir(value):
            function = getattr(value, member)
            if not member.startswith("_") and inspect.isroutine(function) and _is_ours(function):
                bound = inspect.ismethod(function)
                signature = inspect.signature(function)
                rest = list(signature.parameters.values())[0 if bound else 1 :]
                yield f"{name}.{member}", signature.replace(parameters=rest)


def signature_of(kind: type) -> inspect.Signature:
    """The signature by which a class is called; Haystack's metaclass hides it."""
    found = inspect.signature(kind)
    if "args" not in found.parameters:
        return found
    inner = inspect.signature(kind.__init__)
    return inner.replace(parameters=list(inner.parameters.values())[1:])


def _is_ours(function: Any) -> bool:
    return str(getattr(function, "__module__", "")).startswith("embedkit")


def names_of(signature: inspect.Signature) -> set[str]:
    """The names of arguments; the keywords of ``encode`` where a function passes them on."""
    names = set()
    for name, parameter in signature.parameters.items():
        if parameter.kind is not parameter.VAR_KEYWORD:
            names.add(name)
        elif name == "options":
            known = {"SearchKeywords": SEARCH, "PredictOptions": PREDICT}
            names |= set(next((of for kind, of in known.items() if kind in str(parameter.annotation)), ENCODE))
    return names - OF_LLAMA_INDEX


def test_every_public_function_and_argument_has_a_row() -> None:
    found = {name: names_of(signature) for name, signature in public_functions()}
    wanted = {name: names for name, names in found.items() if names and name not in NOT_CALLED_BY_USERS}
    missing = {
        name: sorted(names - ROWS[name].arguments.keys() if name in ROWS else names)
        for name, names in wanted.items()
        if name not in ROWS or names - ROWS[name].arguments.keys()
    }
    assert missing == {}
    assert {*NOT_CALLED_BY_USERS, *ROWS} - found.keys() <= {
        name for name in (*NOT_CALLED_BY_USERS, *ROWS) if ".integrations." in name
    }


def outcome(row: Row, kit: Kit, argument: str, value: Any) -> str:
    arguments = {name: kind.valid(kit) for name, kind in row.arguments.items()} | {argument: value}
    function = row.function(kit)
    positional = [
        arguments.pop(name)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.POSITIONAL_ONLY
    ]
    try:
        row.run(function(*positional, **arguments))
    except EmbedkitError as error:
        return "error" if str(error) else "an error without a sentence"
    except Exception as error:  # noqa: BLE001 - what this suite looks for
        return f"{type(error).__name__}: {error}"
    return "result"


@pytest.mark.parametrize(
    ("function", "argument"), [(name, argument) for name, row in ROWS.items() for argument in row.arguments]
)
def test_each_cell_is_a_result_or_an_own_error(
    function: str, argument: str, kit: Kit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ".integrations.mteb" in function:
        pytest.importorskip("mteb")
    monkeypatch.chdir(tmp_path)  # some cells are names of new folders
    row = ROWS[function]
    kind = row.arguments[argument]
    assert outcome(row, kit, argument, kind.valid(kit)) in ("result", "error")
    wrong = {}
    for cell, make in CELLS.items():
        found = outcome(row, kit, argument, make())
        expected = {"result", "error"} if cell in kind.either else {"result" if cell in kind.takes else "error"}
        if found not in expected:
            wrong[cell] = found
    assert wrong == {}
