"""Bulk encoding: shards hold the encoder's own rows, are computed once, and appear whole or not at all."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toys import write_parquet

from embedkit import Collection, Encoder
from embedkit.errors import CollectionError, DataError, FingerprintError, InputError, MissingExtraError

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

from embedkit.serving.bulk import BulkEncoding, shards  # noqa: E402
from embedkit.serving.bulk import encoding as encoding_module  # noqa: E402
from embedkit.serving.bulk.encoding import ENGINES  # noqa: E402
from embedkit.serving.bulk.shard_encoder import ShardEncoder  # noqa: E402
from embedkit.serving.bulk.shards import cut_into_shards, find_inputs, read_shard  # noqa: E402
from embedkit.serving.retrieval.store.protocol import find_source  # noqa: E402
from embedkit.threads import most_processes  # noqa: E402

WORDS = ["dog", "sea", "music", "the end", "", "garden book", "rain", "naïve 北京"]


def texts(count: int, seed: int = 0) -> list[str]:
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(WORDS, size=generator.integers(1, 9))) for _ in range(count)]


def write(path: Path, rows: int, seed: int = 0, **columns: list) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = {"id": list(range(rows)), "text": texts(rows, seed), "tags": [["a", None]] * rows, **columns}
    write_parquet(path, table, row_group_size=7)
    return path


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """Write three files of 25, 3 and no rows."""
    write(tmp_path / "pages" / "a.parquet", 25)
    write(tmp_path / "pages" / "deep" / "b.parquet", 3, seed=1)
    pages = tmp_path / "pages"
    write_parquet(pages / "c.parquet", parquet.read_table(pages / "a.parquet").slice(0, 0))
    return pages


@pytest.fixture
def prepare(toy_bundle: Path, pages: Path, tmp_path: Path) -> Callable[..., BulkEncoding]:
    """``prepare(rows_per_shard=10)``: the pages to ``out`` by the toy bundle, or other arguments."""

    def prepare(source: Any = pages, output: Any = tmp_path / "out", **options: Any) -> BulkEncoding:
        return BulkEncoding.prepare(source, output, **{"model": toy_bundle, **options})

    return prepare


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_rows_keep_their_columns_and_order_and_get_embeddings(prepare, toy_bundle, tmp_path):
    encoding = prepare(rows_per_shard=10)
    assert encoding.run() == encoding.rows == 28
    table = parquet.read_table(tmp_path / "out")  # as any reader would, the manifest beside the shards
    assert table.column_names == ["id", "text", "tags", "embedding"]
    assert table["id"].to_pylist() == [*range(25), *range(3)]
    assert table["text"].to_pylist() == texts(25) + texts(3, seed=1)
    assert table["tags"].to_pylist() == [["a", None]] * 28
    assert table.schema.field("embedding").type == pa.list_(pa.float32(), 16)
    rows = np.array(table["embedding"].to_pylist(), dtype=np.float32)
    encoder, listed = Encoder.load(toy_bundle), table["text"].to_pylist()
    shards = [encoder.encode(listed[first:last]) for first, last in [(0, 10), (10, 20), (20, 25), (25, 28)]]
    np.testing.assert_array_equal(rows, np.concatenate(shards))


def test_a_shard_says_which_model_made_it(prepare, toy_bundle, tmp_path):
    prepare().run()
    metadata = parquet.read_schema(tmp_path / "out" / "shard-000000.parquet").metadata
    encoder = Encoder.load(toy_bundle)
    about = {"model": "toy", "fingerprint": encoder.fingerprint, "numerics": encoder.numerics}
    assert json.loads(metadata[b"embedkit"]) == about


def test_a_mixture_of_arithmetics_is_logged_and_recorded(prepare, toy_bundle, tmp_path, monkeypatch, caplog):
    out, used = tmp_path / "out", Encoder.load(toy_bundle).numerics
    prepare(columns=["text"], rows_per_shard=10).run()
    assert json.loads((out / "_manifest.json").read_text())["numerics"] == [used]
    (out / "shard-000001.parquet").unlink()
    monkeypatch.setattr(Encoder, "numerics", property(lambda _: "another"))
    caplog.clear()
    prepare(columns=["text"], rows_per_shard=10).run()
    assert [line for line in caplog.messages if f"computed by {used}, and another computes" in line]
    assert json.loads((out / "_manifest.json").read_text())["numerics"] == sorted(["another", used])
    collection = Collection.build(out, encoder=Encoder.load(toy_bundle), path=tmp_path / "idx")
    assert collection.manifest.numerics == tuple(sorted(["another", used]))


def test_shards_cross_row_groups_but_no_files(pages):
    inputs = find_inputs(pages)
    assert [file.name for file in inputs] == ["a.parquet", "c.parquet", "deep/b.parquet"]
    shards = cut_into_shards(inputs, 10)
    assert [(shard.number, shard.first, shard.rows) for shard in shards] == [
        (0, 0, 10),
        (1, 10, 10),
        (2, 20, 5),
        (3, 0, 3),
    ]
    for size in (1, 7, 10, 24, 100):
        read = [read_shard(shard, pa.schema([("id", pa.int64())])) for shard in cut_into_shards(inputs, size)]
        assert pa.concat_tables(read)["id"].to_pylist() == [*range(25), *range(3)]


def test_inputs_are_a_file_a_folder_or_a_pattern(pages, tmp_path, monkeypatch):
    write(pages / "_temporary" / "d.parquet", 2)
    write(pages / ".e.parquet", 2)

    def found(source: object) -> list[str]:
        return [file.path.name for file in find_inputs(source)]

    assert found(pages) == ["a.parquet", "c.parquet", "b.parquet"]
    assert found(pages / "a.parquet") == ["a.parquet"]
    assert found(f"{pages}/**/*.parquet") == [".e.parquet", "d.parquet", "a.parquet", "c.parquet", "b.parquet"]
    monkeypatch.chdir(tmp_path)
    assert found("pages/[ab].parquet") == ["a.parquet"]


def test_only_requested_columns_are_kept(prepare, tmp_path):
    write(tmp_path / "in.parquet", 5, embedding=[0] * 5)
    with pytest.raises(InputError, match="already has a column 'embedding'"):
        prepare(tmp_path / "in.parquet")
    prepare(tmp_path / "in.parquet", columns=["id"]).run()
    assert parquet.read_table(tmp_path / "out").column_names == ["id", "embedding"]


@pytest.mark.parametrize("kind", [pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())])
def test_files_may_store_a_text_differently(prepare, tmp_path, kind):
    for name, column in (("a", pa.array(["a dog"])), ("b", pa.array(["the sea"]).cast(kind))):
        write_parquet(tmp_path / "in" / f"{name}.parquet", {"text": column, "lang": column})
    prepare(tmp_path / "in").run()
    table = parquet.read_table(tmp_path / "out", columns=["text", "lang"])
    assert table["text"].to_pylist() == table["lang"].to_pylist() == ["a dog", "the sea"]
    assert [document.text for document in find_source(tmp_path / "in").documents] == ["a dog", "the sea"]


def test_options_reach_the_encoder(prepare, toy_bundle, tmp_path):
    options = {"truncate_dim": 8, "precision": "ubinary"}
    prepare(**options).run()
    table = parquet.read_table(tmp_path / "out")
    expected = Encoder.load(toy_bundle).encode(
        table["text"].to_pylist(), **options
    )  # signs are the same in any batch
    assert table.schema.field("embedding").type == pa.list_(pa.uint8(), 1)
    np.testing.assert_array_equal(np.array(table["embedding"].to_pylist(), dtype=np.uint8), expected)


def test_the_cost_is_that_of_the_rest(prepare, tmp_path):
    encoding = prepare(rows_per_shard=10)
    cost = encoding.cost()
    assert not (tmp_path / "out").exists()
    assert (cost.rows, cost.shards, cost.bytes) == (28, 4, 28 * 16 * 4)
    assert cost.seconds_per_row > 0
    encoding.run()
    (tmp_path / "out" / "shard-000002.parquet").unlink()
    assert dataclasses.astuple(encoding.cost())[:3] == (5, 1, 5 * 16 * 4)


def test_finished_shards_are_not_computed_again(prepare, tmp_path, monkeypatch):
    out = tmp_path / "out"
    prepare(rows_per_shard=10).run()
    whole = digests(out)
    (out / "shard-000001.parquet").unlink()
    (out / ".shard-000001.parquet.0123456789ab.part").write_bytes(b"half of it")
    made = []
    encode = ShardEncoder.encode
    monkeypatch.setattr(
        ShardEncoder,
        "encode",
        lambda self, shard, advance: made.append(shard.number) or encode(self, shard, advance),
    )
    assert prepare(rows_per_shard=10).run() == 10
    assert made == [1]
    assert digests(out) == whole
    assert prepare(rows_per_shard=10).run() == 0


@pytest.mark.parametrize(
    "damage", [lambda whole: whole[:-1], lambda whole: whole[: len(whole) // 2], lambda _: b""]
)
def test_a_damaged_shard_is_computed_again(prepare, tmp_path, caplog, damage):
    out = tmp_path / "out"
    prepare(rows_per_shard=10).run()
    whole = digests(out)
    shard = out / "shard-000001.parquet"
    shard.write_bytes(damage(shard.read_bytes()))
    encoding = prepare(rows_per_shard=10)
    assert encoding.cost().shards == 1
    assert encoding.run() == 10
    assert [line for line in caplog.messages if "damaged" in line] == [
        f"{shard} is damaged, so its rows are embedded again"
    ]
    assert digests(out) == whole


def test_a_shard_with_the_rows_of_another_is_computed_again(prepare, tmp_path):
    out = tmp_path / "out"
    prepare(rows_per_shard=10).run()
    whole = digests(out)
    (out / "shard-000001.parquet").write_bytes((out / "shard-000002.parquet").read_bytes())
    assert prepare(rows_per_shard=10).run() == 10
    assert digests(out) == whole


def test_several_processes_write_the_same_bytes(pages, tmp_path):
    BulkEncoding.prepare(pages, tmp_path / "one", model="tiny", rows_per_shard=10).run()
    assert BulkEncoding.prepare(pages, tmp_path / "two", model="tiny", rows_per_shard=10).run(workers=2) == 28
    assert digests(tmp_path / "two") == digests(tmp_path / "one")


@pytest.mark.skipif(os.name == "nt", reason="folders with open files cannot be moved")
@pytest.mark.parametrize(
    "moment", [(Encoder, "encode_batches"), (ShardEncoder, "__init__"), (encoding_module, "unfinished")]
)
def test_shards_of_a_folder_that_took_the_name_stay(prepare, pages, toy_bundle, tmp_path, monkeypatch, moment):
    BulkEncoding.prepare(pages, tmp_path / "new", model=toy_bundle, rows_per_shard=10).run()
    other, original = digests(tmp_path / "new"), getattr(*moment)

    def swap(*given: object, **options: object) -> object:
        if (tmp_path / "new").exists():
            (tmp_path / "out").rename(tmp_path / "old")
            (tmp_path / "new").rename(tmp_path / "out")
        return original(*given, **options)

    started = prepare(rows_per_shard=4)
    monkeypatch.setattr(*moment, swap)
    with pytest.raises(CollectionError, match="was moved or replaced"):
        started.run()
    assert digests(tmp_path / "out") == other


def test_another_model_is_refused(prepare, write_toy_bundle, pages, tmp_path):
    prepare().run()
    before = digests(tmp_path / "out")
    other = write_toy_bundle(tmp_path / "other.onnx", name="other")
    with pytest.raises(FingerprintError, match=r"holds embeddings of toy \(fingerprint .* not of other"):
        BulkEncoding.prepare(pages, tmp_path / "out", model=other)
    assert digests(tmp_path / "out") == before


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"truncate_dim": 8}, "was started with truncate_dim None, now 8"),
        ({"rows_per_shard": 3}, "was started with rows_per_shard 32768, now 3"),
        ({"columns": ["id"]}, r"was started with columns \['id', 'text', 'tags'\], now \['id'\]"),
        ({"precision": "ubinary"}, "precision 'float32', now 'ubinary'"),
    ],
)
def test_other_settings_are_refused(prepare, changed, words):
    prepare().run()
    with pytest.raises(InputError, match=words):
        prepare(**changed)


def test_other_inputs_are_refused(prepare, pages):
    prepare().run()
    write(pages / "a.parquet", 25, seed=5)
    with pytest.raises(InputError, match="was started with inputs 3 files with 28 rows"):
        prepare()


def test_a_folder_without_shards_may_start_over(prepare, tmp_path):
    write(tmp_path / "in.parquet", 2, text=["a", None])
    with pytest.raises(DataError, match=r"in.parquet:2: 'text' is null"):
        prepare(tmp_path / "in.parquet").run()
    write(tmp_path / "in.parquet", 2)
    assert prepare(tmp_path / "in.parquet").run() == 2


@pytest.mark.parametrize("damaged", ["", "[]", "{}", '{"fingerprint": null}', "[" * 10_000])
def test_a_damaged_manifest_is_an_error(prepare, tmp_path, damaged):
    prepare().run()
    (tmp_path / "out" / "_manifest.json").write_text(damaged)
    with pytest.raises(CollectionError, match=r"_manifest\.json (is damaged|cannot be read)"):
        prepare()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_a_pipe_in_place_of_a_manifest_is_refused(prepare, tmp_path):
    prepare().run()
    (tmp_path / "out" / "_manifest.json").unlink()
    os.mkfifo(tmp_path / "out" / "_manifest.json")
    with pytest.raises(CollectionError, match="not a regular file"):
        prepare()


def test_files_of_others_are_left_alone(prepare, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("mine")
    with pytest.raises(CollectionError, match=r"holds thesis.txt and no _manifest.json"):
        prepare().run()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]


def test_two_runs_at_once_are_refused(prepare, monkeypatch):
    encoding = prepare()
    refused = []

    def second(*_: object) -> int:
        with pytest.raises(CollectionError, match="another process is writing"):
            encoding.run()
        refused.append(1)
        return 0

    monkeypatch.setattr(ShardEncoder, "encode", second)
    encoding.run()
    assert refused


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"source": "none"}, DataError, "there are no Parquet files at none"),
        ({"text_column": "body"}, DataError, "there is no column 'body'; there are id, text, tags"),
        ({"columns": ["url"]}, DataError, "there is no column 'url'"),
        ({"text_column": "tags"}, DataError, "'tags' should be texts, not list"),
        ({"rows_per_shard": 0}, InputError, "rows_per_shard must be a whole number from 1 up"),
        ({"output": "pages/out"}, InputError, "is inside the input"),
        ({"output": "pages/a.parquet", "source": "pages/a.parquet"}, InputError, "is a file; choose a folder"),
        ({"truncate_dim": 99}, InputError, "truncate_dim"),
    ],
)
@pytest.mark.usefixtures("pages")
def test_invalid_options_are_refused_before_anything_is_written(
    toy_bundle, tmp_path, monkeypatch, arguments, error, words
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=words):
        BulkEncoding.prepare(**{"source": "pages", "output": "out", "model": toy_bundle, **arguments})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pages"]


def test_files_may_differ_in_order_width_and_presence_of_columns(prepare, tmp_path):
    (tmp_path / "in").mkdir()
    narrow = pa.table({"text": ["a"], "n": pa.array([1], pa.int32()), "x": pa.nulls(1)})
    wide = pa.table({"x": ["b"], "text": pa.array(["b"], pa.large_string()), "n": pa.array([2], pa.int64())})
    for number, table in enumerate([narrow, wide, pa.table({"text": ["c"], "y": [True]})]):
        write_parquet(tmp_path / "in" / f"{number}.parquet", table)
    prepare(tmp_path / "in").run()
    rows = [
        row
        for file in sorted((tmp_path / "out").glob("*.parquet"))
        for row in parquet.read_table(file).to_pylist()
    ]
    assert [{name: row[name] for name in ("text", "n", "x", "y")} for row in rows] == [
        {"text": "a", "n": 1, "x": None, "y": None},
        {"text": "b", "n": 2, "x": "b", "y": None},
        {"text": "c", "n": None, "x": None, "y": True},
    ]


def test_columns_without_a_common_type_are_named_and_can_be_left_out(prepare, tmp_path):
    (tmp_path / "in").mkdir()
    write_parquet(tmp_path / "in" / "0.parquet", {"text": ["a"], "n": [1]})
    write_parquet(tmp_path / "in" / "1.parquet", {"text": ["b"], "n": ["x"]})
    with pytest.raises(DataError, match=r"the column 'n' is int64 in .*0.parquet and string in .*1.parquet"):
        prepare(tmp_path / "in")
    encoding = prepare(tmp_path / "in", columns=["text"])
    assert encoding.run() == 2


def test_a_column_named_twice_is_refused(prepare, tmp_path):
    table = pa.Table.from_arrays([pa.array(["a"])] * 2, names=["text", "text"])
    write_parquet(tmp_path / "a.parquet", table)
    with pytest.raises(DataError, match=r"a.parquet has two columns 'text'"):
        prepare(tmp_path / "a.parquet")


def test_folders_with_hives_names_are_columns(prepare, tmp_path):
    for year, lang in [(2023, "en"), (2024, "de%2Dat"), (2024, "__HIVE_DEFAULT_PARTITION__")]:
        folder = tmp_path / "in" / f"year={year}" / f"lang={lang}"
        folder.mkdir(parents=True)
        write_parquet(folder / "0.parquet", {"text": [f"{year} {lang}"]})
    prepare(tmp_path / "in").run()
    rows = [
        row
        for file in sorted((tmp_path / "out").glob("*.parquet"))
        for row in parquet.read_table(file).to_pylist()
    ]
    assert sorted((row["text"], row["year"], row["lang"]) for row in rows) == [
        ("2023 en", 2023, "en"),
        ("2024 __HIVE_DEFAULT_PARTITION__", 2024, None),
        ("2024 de%2Dat", 2024, "de-at"),
    ]


def test_a_shard_that_would_fill_the_memory_is_refused(prepare, tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "_LARGEST_SHARD", 10_000)
    write_parquet(tmp_path / "a.parquet", {"text": ["a" * 1000] * 1000})
    encoding = prepare(tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"a.parquet: 512 rows hold more than 0 GiB; use a smaller rows_per_shard"):
        encoding.cost()


def test_inputs_are_parquet_with_texts(prepare, pages):
    write_parquet(pages / "z.parquet", {"id": [1]})
    with pytest.raises(DataError, match=r"z.parquet: there is no column 'text', unlike in .*a.parquet"):
        prepare()
    (pages / "z.parquet").write_bytes(b"no Parquet")
    with pytest.raises(DataError, match=r"z.parquet is not a readable Parquet file"):
        find_inputs(pages)


def test_a_file_changed_during_the_run_is_noticed(prepare, tmp_path):
    write(tmp_path / "in.parquet", 20)
    encoding = prepare(tmp_path / "in.parquet", rows_per_shard=10)
    write(tmp_path / "in.parquet", 12)
    with pytest.raises(DataError, match="has fewer rows than when the run started"):
        encoding.run()


def test_a_worker_refuses_another_model(prepare, write_toy_bundle, tmp_path):
    encoding = prepare()
    other = write_toy_bundle(tmp_path / "other.onnx", name="other")
    with pytest.raises(FingerprintError, match=r"other.onnx is another model here"):
        ShardEncoder(dataclasses.replace(encoding.job, model=str(other)))


def test_engines_are_selected_by_name(prepare, tmp_path, monkeypatch):
    encoding = prepare()
    with pytest.raises(InputError, match="there is no engine 'spark'; the engines are local, ray"):
        encoding.run(engine="spark")
    for workers in (0, most_processes() + 1):
        with pytest.raises(InputError, match="workers must be"):
            encoding.run(workers=workers)
    monkeypatch.setitem(ENGINES, "ray", ("no_such_package", "ray"))
    with pytest.raises(MissingExtraError, match=r"no_such_package is not installed.*embedkit-onnx\[ray\]"):
        encoding.run(engine="ray")
    assert not list((tmp_path / "out").glob("shard-*"))


PEAK = """
import resource, sys
from embedkit.serving.bulk import BulkEncoding
BulkEncoding.prepare(sys.argv[1], sys.argv[2], model=sys.argv[3], rows_per_shard=1000).run()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows tells no peak")
@pytest.mark.release  # writes 120 MB
def test_memory_is_bounded_by_a_shard(toy_bundle, tmp_path):
    def peak(rows: int) -> int:
        pages = [random.randbytes(1500).hex() for _ in range(rows)]
        table = pa.table({"text": ["a dog"] * rows, "page": pages})
        write_parquet(tmp_path / f"{rows}.parquet", table, row_group_size=rows)
        arguments = [str(tmp_path / f"{rows}.parquet"), str(tmp_path / f"out-{rows}"), str(toy_bundle)]
        done = subprocess.run([sys.executable, "-c", PEAK, *arguments], capture_output=True, check=True)
        return int(done.stdout)

    assert peak(40_000) < peak(2000) + 50e6  # the file has 120 MB, all in one row group
