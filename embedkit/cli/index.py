"""`embedkit index`: build, change and verify collections of documents."""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from embedkit.cli.options import COLLECTION, MODEL, add_text_column, in_processes, report_unknown
from embedkit.cli.rows import counted
from embedkit.cli.search import one_line
from embedkit.errors import CollectionNotFoundError, InputError

if TYPE_CHECKING:
    from embedkit.runtime.encoder import Encoder
    from embedkit.serving.retrieval.collection import Collection
    from embedkit.serving.retrieval.sync import Synced

logger = logging.getLogger("embedkit")

HELP = "build, change or verify a collection of documents"
EXAMPLES = """
embedkit index build docs.jsonl -m tiny.onnx -o idx/ --text-column body
embedkit index build docs.parquet -m tiny -o idx/ --kind hnsw --language german
embedkit index build docs.jsonl -m teacher.onnx --queries tiny -o idx/
embedkit index build pages-embedded/ -m tiny.onnx -o idx/
embedkit index build handbook/ --split --overlap 20 -m tiny -o idx/
embedkit index sync handbook/ faq/ idx/ -m tiny
embedkit index add new.jsonl idx/
embedkit index add pages.csv idx/ --text-column body --id-column url
embedkit index update idx/ doc-17 doc-42 --set lang=en --set year=2024
embedkit index update idx/ --filter "lang = eng" --set lang=en
embedkit index delete idx/ doc-17 doc-42
embedkit index delete idx/ --json -- -5
embedkit index delete idx/ --filter "year < 2000"
embedkit index list idx/ --filter "lang = en" --limit 10
embedkit index compact idx/
embedkit index compact idx/ --kind ivf-pq
embedkit index copy idx/ backup/
embedkit index verify idx/
embedkit index verify idx/ --json
"""

_NAMED = 5  # unknown ids in a warning
_KINDS = "exact, sq8, hnsw or ivf-pq"


def configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(
        dest="action", required=True, metavar="build|add|sync|update|delete|list|count|compact|copy|verify"
    )
    _configure_build(actions)
    add = actions.add_parser("add", help="add documents, and replace those with the same ids", allow_abbrev=False)
    _configure_documents(add)
    _configure_collection(add)
    add.add_argument("-m", "--model", help="the model that built the collection, if it has moved")
    sync = actions.add_parser(
        "sync",
        help="keep a collection in step with folders of text: add, update and remove windows of their files",
        allow_abbrev=False,
    )
    sync.add_argument(
        "folders", nargs="+", metavar="FOLDER", help="a folder of .txt, .md and .html, or such a file"
    )
    _configure_collection(sync)
    sync.add_argument("-m", "--model", help="the model, if IDX is new or its model has moved")
    _configure_windows(sync)
    update = actions.add_parser(
        "update", help="change metadata of documents by their ids or a filter", allow_abbrev=False
    )
    _configure_selection(update)
    update.add_argument(
        "--set",
        action="append",
        required=True,
        type=_setting,
        metavar="FIELD=VALUE",
        help="new value of a field, in JSON or as text; may be repeated",
    )
    delete = actions.add_parser("delete", help="delete documents by their ids or a filter", allow_abbrev=False)
    _configure_selection(delete)
    listing = actions.add_parser("list", help="list documents", allow_abbrev=False)
    _configure_collection(listing)
    _configure_filter(listing)
    listing.add_argument("--limit", type=int, metavar="N", help="maximum number of documents; default: all")
    count = actions.add_parser("count", help="count documents", allow_abbrev=False)
    _configure_collection(count)
    _configure_filter(count)
    compact = actions.add_parser(
        "compact", help="reclaim the space of deleted documents, and rebuild the index", allow_abbrev=False
    )
    _configure_collection(compact)
    compact.add_argument("--kind", help=f"another kind of index: auto, {_KINDS}")
    compact.add_argument(
        "--lexical", action=argparse.BooleanOptionalAction, help="add or remove the keyword index"
    )
    copy = actions.add_parser("copy", help="copy a collection while it is in use", allow_abbrev=False)
    _configure_collection(copy)
    copy.add_argument("target", metavar="FOLDER", help="new or empty folder")
    verify = actions.add_parser("verify", help="compare every file with its checksum", allow_abbrev=False)
    _configure_collection(verify)


def run(arguments: argparse.Namespace) -> None:
    """Run the action, and print a summary of the collection."""
    from embedkit.serving.retrieval.store.index_kinds import SMALL

    if arguments.action in _LISTINGS:
        _LISTINGS[arguments.action](arguments)
        return
    done, collection, changes = _ACTIONS[arguments.action](arguments)
    facts = _facts(collection) | changes
    if arguments.json:
        print(json.dumps(facts, ensure_ascii=False))
        return
    counts = "".join(f", {count:,} {name}" for name, count in changes.items())
    size = f", {facts['bytes'] / 1e6:,.1f} MB" if "bytes" in facts else ""
    queries = f", queries by {facts['queries']}" if facts.get("queries") else ""
    index = facts["index"]
    if collection.manifest.index not in ("auto", index):
        index += f" ({collection.manifest.index} from {SMALL + 1:,} documents on)"
    documents = counted(facts["documents"], "document")
    print(
        f"{done} {facts['path']}{counts}: {documents}, {facts['dimension']} dimensions, "
        f"index {index}, model {facts['model']}{queries}{size}"
    )


def _configure_build(actions: Any) -> None:
    build = actions.add_parser("build", help="embed documents and build a collection", allow_abbrev=False)
    _configure_documents(build)
    build.add_argument("-m", "--model", help=f"{MODEL}; default: the bundled one that embedded DOCS")
    build.add_argument(
        "--queries", metavar="MODEL", help="a smaller model for queries: a student of --model or of its teacher"
    )
    build.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="IDX",
        help="output folder, or a new milvus:URI#NAME or qdrant:URL#NAME",
    )
    build.add_argument(
        "--replace", action="store_true", help="replace an existing collection in the output folder"
    )
    build.add_argument(
        "--kind",
        default="auto",
        help=f"{_KINDS}; default: auto, by cost; on Milvus, its own: FLAT, HNSW...",
    )
    build.add_argument(
        "--lexical",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="whether to rank by keywords, too; default: yes",
    )
    build.add_argument(
        "--language",
        default="auto",
        help="stem keywords of this language; default: auto, from the texts",
    )


def _configure_documents(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "documents",
        metavar="DOCS",
        help="a .jsonl, .csv, .tsv, .txt or .parquet file, - for standard input, a folder of Parquet, the shards "
        "of `embedkit encode`, a collection, a URL, or hf://org/name[@revision][:split]",
    )
    parser.add_argument(
        "--embeddings",
        metavar="NAME|FILE.npy",
        help="existing embeddings: a column of DOCS, or a file by row",
    )
    parser.add_argument("--processes", type=int, metavar="N", help="embed with N processes; default: in this one")
    add_text_column(parser)
    parser.add_argument(
        "--id-column",
        metavar="NAME",
        help="default: id if the first record has it, otherwise the row number",
    )
    parser.add_argument(
        "--metadata-columns",
        type=lambda names: [name for name in names.split(",") if name],
        metavar="NAME,...",
        help="columns to keep as metadata; default: all others",
    )
    parser.add_argument("--skip-empty", action="store_true", help="leave out documents without text")
    parser.add_argument(
        "--split",
        action="store_true",
        help="divide long documents into windows; DOCS may also be a folder of .txt, .md and .html",
    )
    _configure_windows(parser)


def _configure_windows(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--strict", action="store_true", help="a file in a folder that cannot be read is an error, not left out"
    )
    parser.add_argument(
        "--follow-links", action="store_true", help="also read files outside of a folder to which links in it lead"
    )
    parser.add_argument(
        "--max-tokens", type=int, metavar="N", help="maximum size of a window; default: as many as the model takes"
    )
    parser.add_argument(
        "--overlap", type=int, metavar="N", help="tokens that consecutive windows share (default: 0)"
    )


def _configure_collection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("collection", metavar="IDX", help=COLLECTION)


def _configure_selection(parser: argparse.ArgumentParser) -> None:
    _configure_collection(parser)
    parser.add_argument("ids", nargs="*", metavar="ID", help="ids of documents")
    parser.add_argument("--missing-ok", action="store_true", help="ignore ids that no document has")
    _configure_filter(parser)


def _configure_filter(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--filter", metavar="FILTER", help="only documents with these metadata: lang = en, year >= 2020; or JSON"
    )


def _build(arguments: argparse.Namespace) -> tuple[str, Collection, dict[str, int]]:
    from embedkit.runtime.encoder import Encoder
    from embedkit.runtime.find import absolute_source
    from embedkit.serving.retrieval.collection import Collection
    from embedkit.serving.retrieval.splitting import is_text_source
    from embedkit.serving.retrieval.sync import new_windows

    model = arguments.model or _model_of(arguments)
    loaded = Encoder.load(model)
    documents, roots = _documents(arguments, loaded), None
    if arguments.split and is_text_source(arguments.documents):
        roots, documents = new_windows(arguments.documents, loaded, **_limits(arguments), **_files(arguments))
    with in_processes(loaded, arguments.processes) as encoder:
        collection = Collection.build(
            documents,
            encoder=encoder,
            queries=arguments.queries,
            path=arguments.output,
            index=arguments.kind,
            lexical=arguments.lexical,
            language=arguments.language,
            source=absolute_source(model),
            replace=arguments.replace,
            **_reading(arguments),
        )
    if roots is not None:
        collection.store.keep_roots(roots.all)
    report_unknown(loaded)
    return "built", collection, {}


def _add(arguments: argparse.Namespace) -> tuple[str, Collection, dict[str, int]]:
    from embedkit.runtime.encoder import Encoder
    from embedkit.serving.retrieval.collection import Collection
    from embedkit.serving.retrieval.models import recorded_model

    named = arguments.model
    loaded = Encoder.load(named) if named else recorded_model(Collection.describe(arguments.collection))
    with in_processes(loaded, arguments.processes) as encoder:
        collection = Collection.open(arguments.collection, encoder=encoder)
        if arguments.split:
            return "changed", collection, _add_windows(arguments, collection, loaded)
        done = collection.upsert(_documents(arguments, loaded), **_reading(arguments))
    return "changed", collection, done._asdict()


def _add_windows(arguments: argparse.Namespace, collection: Collection, splitter: Encoder) -> dict[str, int]:
    """Add or update the windows of files, or of records, and return the numbers of documents."""
    from embedkit.serving.retrieval.documents import Columns
    from embedkit.serving.retrieval.splitting import is_text_source, record_pages
    from embedkit.serving.retrieval.sync import NamedPage

    _refuse_embeddings(arguments)
    source = arguments.documents
    if is_text_source(source):
        return _changes(collection.sync(source, remove=False, **_limits(arguments), **_files(arguments)))
    columns = Columns(
        text=arguments.text_column,
        id=arguments.id_column,
        metadata=arguments.metadata_columns,
        number_rows=False,
        skip_empty=arguments.skip_empty,
    )
    limits = _limits(arguments, overlap=0)
    pages = (NamedPage(name, page, **limits) for name, page in record_pages(source, columns))
    return _changes(collection.write_pages(pages, splitter))


def _sync(arguments: argparse.Namespace) -> tuple[str, Collection, dict[str, int]]:
    from embedkit.serving.retrieval.collection import Collection

    try:
        collection = Collection.open(arguments.collection, encoder=arguments.model)
    except CollectionNotFoundError:
        return _build_synced(arguments)
    done = collection.sync(
        arguments.folders,
        **_limits(arguments),
        strict=arguments.strict,
        follow_links=arguments.follow_links,
    )
    verb = "changed" if done.added or done.updated or done.removed else "checked"
    return verb, collection, _changes(done)


def _build_synced(arguments: argparse.Namespace) -> tuple[str, Collection, dict[str, int]]:
    from embedkit.runtime.encoder import Encoder
    from embedkit.runtime.find import absolute_source
    from embedkit.serving.retrieval.collection import Collection
    from embedkit.serving.retrieval.sync import new_windows

    if arguments.model is None:
        raise InputError(
            f"there is no collection at {arguments.collection}; name a model to create it, such as -m tiny"
        )
    encoder = Encoder.load(arguments.model)
    roots, windows = new_windows(arguments.folders, encoder, **_limits(arguments), **_files(arguments))
    source = absolute_source(arguments.model)
    collection = Collection.build(
        windows, encoder=encoder, path=arguments.collection, id_column="id", source=source
    )
    collection.store.keep_roots(roots.all)
    report_unknown(encoder)
    return "built", collection, {}


def _limits(arguments: argparse.Namespace, *, overlap: int | None = None) -> dict[str, Any]:
    return {
        "max_tokens": arguments.max_tokens,
        "overlap": overlap if arguments.overlap is None else arguments.overlap,
    }


def _files(arguments: argparse.Namespace) -> dict[str, bool]:
    return {"strict": arguments.strict, "follow_links": arguments.follow_links}


def _changes(done: Synced) -> dict[str, int]:
    """Return the counts that are not 0."""
    return {name: count for name, count in done._asdict().items() if count or name == "unchanged"}


def _reading(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return how documents, or windows of these, are read and embedded."""
    from embedkit.serving.retrieval.splitting import NAMES

    id_column, metadata = arguments.id_column, arguments.metadata_columns
    if arguments.split:
        id_column = "id"
        metadata = None if metadata is None else list(dict.fromkeys((*metadata, *NAMES[1:])))
    return {
        "embeddings": arguments.embeddings,
        "text_column": arguments.text_column,
        "id_column": id_column,
        "metadata_columns": metadata,
        "skip_empty": arguments.skip_empty,
    }


def _documents(arguments: argparse.Namespace, encoder: Encoder) -> str | Iterator[dict[str, Any]]:
    """Return the documents, divided into windows if requested."""
    from embedkit.serving.retrieval.splitting import split_documents

    documents: str = arguments.documents
    if not arguments.split:
        if arguments.max_tokens is not None or arguments.overlap:
            raise InputError("--max-tokens and --overlap are for --split")
        return documents
    _refuse_embeddings(arguments)
    return split_documents(
        documents,
        encoder,
        max_tokens=arguments.max_tokens,
        overlap=arguments.overlap or 0,
        text_column=arguments.text_column,
        id_column=arguments.id_column,
        skip_empty=arguments.skip_empty,
        strict=arguments.strict,
        follow_links=arguments.follow_links,
    )


def _refuse_embeddings(arguments: argparse.Namespace) -> None:
    if arguments.embeddings is not None:
        raise InputError("--split makes new texts, which need new embeddings; leave out --embeddings")


def _model_of(arguments: argparse.Namespace) -> str:
    """Name of the model by which documents are embedded already; InputError if that is unknown."""
    from embedkit.serving.retrieval.store.protocol import find_source

    documents: str = arguments.documents
    model = None if arguments.split else find_source(documents).model
    if model is None:
        raise InputError(f"{documents} has no embeddings yet; name a model, such as -m tiny")
    return model.name


def _setting(text: str) -> tuple[str, Any]:
    """Read ``FIELD=VALUE``, whose value is JSON or else a text."""
    name, sign, value = text.partition("=")
    if not sign or not name.strip():
        raise argparse.ArgumentTypeError(f"expected FIELD=VALUE, such as lang=en, got {text!r:.80}")
    if name.strip() in ("id", "text"):
        raise argparse.ArgumentTypeError(f"{name.strip()} is not metadata; `embedkit index add` replaces texts")
    try:
        return name.strip(), json.loads(value, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return name.strip(), value.strip()


def _refuse_constant(name: str) -> Any:
    raise ValueError(name)


def _update(arguments: argparse.Namespace) -> tuple[str, Collection, dict[str, int]]:
    collection = _open(arguments)
    ids, unknown = _selected(collection, arguments, "change")
    if not ids:
        ids = [document.id for document in collection.find(_filter(arguments))]
    updated = collection.update({id_: dict(arguments.set) for id_ in ids})
    return "changed", collection, {"updated": updated} | unknown


def _delete(arguments: argparse.Namespace) -> tuple[str, Collection, dict[str, int]]:
    collection = _open(arguments)
    ids, unknown = _selected(collection, arguments, "delete")
    deleted = collection.delete(ids) if ids else collection.delete(filter=_filter(arguments))
    return "changed", collection, {"deleted": deleted} | unknown


def _selected(
    collection: Collection, arguments: argparse.Namespace, verb: str
) -> tuple[list[str], dict[str, int]]:
    """Return the ids given, none if there is a filter instead, and the number of those that no document has."""
    ids = list(dict.fromkeys(arguments.ids))
    if bool(ids) == (arguments.filter is not None):
        raise InputError(f"name the documents to {verb}, by ids or by --filter")
    unknown = [id_ for id_, document in zip(ids, collection.get(ids), strict=True) if document is None]
    if unknown and not arguments.missing_ok:
        more = f" and {len(unknown) - _NAMED:,} more" if len(unknown) > _NAMED else ""
        noun = "id" if len(unknown) == 1 else "ids"
        raise InputError(
            f"no document has the {noun} {', '.join(unknown[:_NAMED])}{more}; nothing was {verb}d; --missing-ok "
            "ignores unknown ids"
        )
    return ids, {"unknown": len(unknown)} if unknown else {}


def _list(arguments: argparse.Namespace) -> None:
    for document in _open(arguments).find(_filter(arguments), limit=arguments.limit):
        if arguments.json:
            print(json.dumps(dataclasses.asdict(document), ensure_ascii=False))
        else:
            print(f"{one_line(document.id)}  {one_line(document.text)}")


def _count(arguments: argparse.Namespace) -> None:
    count = _open(arguments).count(_filter(arguments))
    print(json.dumps({"documents": count}) if arguments.json else count)


def _filter(arguments: argparse.Namespace) -> dict[str, Any] | None:
    from embedkit.serving.retrieval.filters import read_filter

    return None if arguments.filter is None else read_filter(arguments.filter)


def _compact(arguments: argparse.Namespace) -> tuple[str, Collection, dict[str, int]]:
    collection = _open(arguments)
    collection.compact(index=arguments.kind, lexical=arguments.lexical)
    return "compacted", collection, {}


def _copy(arguments: argparse.Namespace) -> tuple[str, Collection, dict[str, int]]:
    from embedkit.serving.retrieval.collection import Collection

    Collection.open(arguments.collection).copy(arguments.target)
    return "copied", Collection.open(arguments.target), {}


def _verify(arguments: argparse.Namespace) -> tuple[str, Collection, dict[str, int]]:
    collection = _open(arguments)
    collection.verify()
    return "verified", collection, {}


def _open(arguments: argparse.Namespace) -> Collection:
    from embedkit.serving.retrieval.collection import Collection

    return Collection.open(arguments.collection)


_ACTIONS = {
    "build": _build,
    "add": _add,
    "sync": _sync,
    "update": _update,
    "delete": _delete,
    "compact": _compact,
    "copy": _copy,
    "verify": _verify,
}

_LISTINGS = {"list": _list, "count": _count}


def _facts(collection: Collection) -> dict[str, Any]:
    about = collection.manifest
    return {
        "path": str(collection.path),
        "documents": about.count,
        "dimension": about.dimension,
        "index": about.index,
        "lexical": about.lexical,
        "model": about.model,
        "fingerprint": about.fingerprint,
        "numerics": list(about.numerics),
        "queries": about.queries and about.queries.model,
        **collection.store.stats(),
    }
