from __future__ import annotations

import json

import pytest
from toys import write_parquet

pytest.importorskip("onnx")  # writes the toy bundle

from embedkit.cli.main import main
from embedkit.runtime.encoder import Encoder
from embedkit.serving.retrieval import Collection

ROWS = [{"key": "a", "body": "a good dog"}, {"key": "b", "body": "the cat is asleep"}]


@pytest.fixture
def documents(tmp_path):
    path = tmp_path / "docs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def build(documents, bundle, output, *options):
    columns = ("--text-column", "body", "--id-column", "key")
    return main(["index", "build", str(documents), "-m", str(bundle), "-o", str(output), *columns, *options])


@pytest.mark.parametrize("kind", ["exact", "sq8"])
def test_a_built_collection_can_be_searched(tmp_path, documents, toy_bundle, capsys, kind):
    if kind == "sq8":
        pytest.importorskip("faiss")
    assert build(documents, toy_bundle, tmp_path / "idx", "--kind", kind) == 0
    output = capsys.readouterr()
    assert f"2 documents, 16 dimensions, index {kind}, model toy" in output.out
    collection = Collection.open(tmp_path / "idx", encoder=Encoder.load(toy_bundle))
    assert [hit.id for hit in collection.search("a good dog")] == ["a", "b"]
    assert collection.manifest.source == str(toy_bundle.resolve())


def test_json_is_the_only_output(tmp_path, documents, toy_bundle, capsys):
    assert build(documents, toy_bundle, tmp_path / "idx", "--json") == 0
    built = json.loads(capsys.readouterr().out)
    assert main(["index", "verify", str(tmp_path / "idx"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == built
    assert built["documents"] == 2
    assert built["bytes"] == sum(file.stat().st_size for file in (tmp_path / "idx").glob("generation-*/*"))


def test_a_collection_is_copied(tmp_path, documents, toy_bundle, capsys):
    build(documents, toy_bundle, tmp_path / "idx")
    capsys.readouterr()
    assert main(["index", "copy", str(tmp_path / "idx"), str(tmp_path / "copy")]) == 0
    assert capsys.readouterr().out.startswith(f"copied {tmp_path / 'copy'}: ")
    assert len(Collection.open(tmp_path / "copy")) == len(Collection.open(tmp_path / "idx"))
    assert main(["index", "copy", str(tmp_path / "idx"), str(tmp_path / "copy")]) == 1
    assert "already" in capsys.readouterr().err


def test_verify_needs_no_model_and_names_the_damaged_file(tmp_path, documents, toy_bundle, capsys):
    build(documents, toy_bundle, tmp_path / "idx")
    assert main(["index", "verify", str(tmp_path / "idx")]) == 0
    assert "verified" in capsys.readouterr().out
    (file,) = (tmp_path / "idx").glob("generation-*/arrays.bin")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert main(["index", "verify", str(tmp_path / "idx")]) == 1
    assert str(file) in capsys.readouterr().err


def test_documents_are_added_replaced_and_deleted(tmp_path, documents, toy_bundle, capsys):
    index = str(tmp_path / "idx")
    build(documents, toy_bundle, index)
    new = tmp_path / "new.csv"
    new.write_text("key,body\nb,the cat is awake\nc,snow and ice\n")
    assert main(["index", "add", str(new), index, "--text-column", "body", "--id-column", "key"]) == 0
    assert f"changed {index}, 1 added, 1 replaced: 3 documents" in capsys.readouterr().out
    assert main(["index", "delete", index, "a", "nobody"]) == 1
    assert "no document has the id nobody; nothing was deleted" in capsys.readouterr().err
    assert main(["index", "delete", index, "a", "nobody", "--missing-ok"]) == 0
    assert f"changed {index}, 1 deleted, 1 unknown: 2 documents" in capsys.readouterr().out
    assert main(["index", "compact", index, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["documents"] == 2
    assert main(["index", "verify", index]) == 0
    assert [document.text for document in Collection.open(index).get(["b", "c"])] == [
        "the cat is awake",
        "snow and ice",
    ]


def build_years(folder, model, texts):
    """Build an index of documents d0, d1, ..., of the years 2000, 2001, ...; return its path."""
    documents, index = folder / "documents.jsonl", str(folder / "idx")
    rows = [{"key": f"d{n}", "body": text, "year": 2000 + n} for n, text in enumerate(texts)]
    documents.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    build(documents, model, index)
    return index


def test_documents_are_listed_counted_and_deleted_by_a_filter(tmp_path, toy_bundle, capsys):
    index = build_years(tmp_path, toy_bundle, [f"a dog\n{n}" for n in range(4)])
    capsys.readouterr()
    assert main(["index", "list", index, "--filter", "year > 2001", "--limit", "1"]) == 0
    assert main(["index", "count", index, "--filter", "year = 2000 | year = 2003"]) == 0
    assert capsys.readouterr().out == "d2  a dog 2\n2\n"
    assert main(["index", "delete", index, "--filter", "not year = 2000"]) == 0
    assert ", 3 deleted: 1 document," in capsys.readouterr().out
    assert main(["index", "list", index, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"id": "d0", "text": "a dog\n0", "metadata": {"year": 2000}}
    assert main(["index", "delete", index]) == 1
    assert "by ids or by --filter" in capsys.readouterr().err


def test_metadata_are_changed_by_ids_or_a_filter(tmp_path, toy_bundle, capsys):
    index = build_years(tmp_path, toy_bundle, [f"a dog {n}" for n in range(3)])
    capsys.readouterr()
    settings = ["--set", "lang=en", "--set", 'tags=["a=b", 1]', "--set", "limit=NaN"]
    assert main(["index", "update", index, "d0", "d0", "--filter", "year = 2000", *settings]) == 1
    assert main(["index", "update", index, "d0", "nobody", *settings]) == 1
    error = capsys.readouterr().err
    assert "name the documents to change" in error
    assert "the id nobody; nothing was changed" in error
    assert main(["index", "update", index, "d0", "nobody", "--missing-ok", *settings]) == 0
    assert f"changed {index}, 1 updated, 1 unknown: 3 documents" in capsys.readouterr().out
    assert main(["index", "update", index, "--filter", "year > 2000", "--set", "year=0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["updated"] == 2
    metadata = {document.id: document.metadata for document in Collection.open(index).find()}
    assert metadata["d0"] == {"year": 2000, "lang": "en", "tags": ["a=b", 1], "limit": "NaN"}
    assert metadata["d1"] == metadata["d2"] == {"year": 0}
    for wrong, message in [("lang", "expected FIELD=VALUE"), ("text=a", "text is not metadata")]:
        with pytest.raises(SystemExit):
            main(["index", "update", index, "d0", "--set", wrong])
        assert message in capsys.readouterr().err


def test_adding_asks_for_a_moved_model(tmp_path, documents, toy_bundle, capsys):
    index, bundle = str(tmp_path / "idx"), tmp_path / "toy.onnx"
    bundle.write_bytes(toy_bundle.read_bytes())
    build(documents, bundle, index)
    moved = bundle.rename(tmp_path / "moved.onnx")
    add = ["index", "add", str(documents), index, "--text-column", "body", "--id-column", "key"]
    assert main(add) == 1
    assert "-m MODEL" in capsys.readouterr().err
    assert main([*add, "-m", str(moved)]) == 0


@pytest.mark.parametrize(
    ("options", "message"), [(("--kind", "tree"), "no index 'tree'"), (("--text-column", "title"), "docs.jsonl:1")]
)
def test_mistakes_are_reported_in_one_line(tmp_path, documents, toy_bundle, capsys, options, message):
    assert build(documents, toy_bundle, tmp_path / "idx", *options) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "idx").exists()


def test_documents_and_queries_by_two_models(tmp_path, documents, toy_bundle, write_toy_bundle, capsys):
    index = str(tmp_path / "idx")
    teacher = {"name": "toy", "fingerprint": Encoder.load(toy_bundle).fingerprint}
    student = write_toy_bundle(tmp_path / "student.onnx", name="student", teacher=teacher)
    assert build(documents, toy_bundle, index, "--queries", str(student)) == 0
    assert "model toy, queries by student" in capsys.readouterr().out
    assert Collection.open(index).manifest.queries.source == str(student)
    assert main(["search", index, "a good dog"]) == 0
    assert main(["search", index, "a good dog", "-m", str(toy_bundle)]) == 0
    assert build(documents, toy_bundle, str(tmp_path / "other"), "--queries", "tiny") == 1
    assert "tiny gives 384 dimensions" in capsys.readouterr().err


def test_shards_of_encode_become_a_collection(tmp_path, toy_bundle, capsys):
    texts = tmp_path / "texts.parquet"
    write_parquet(texts, ROWS)
    shards, index = str(tmp_path / "shards"), str(tmp_path / "idx")
    assert main(["encode", "-m", str(toy_bundle), str(texts), "-o", shards, "--text-column", "body"]) == 0
    columns = ("--text-column", "body", "--id-column", "key")
    assert main(["index", "build", shards, "-m", str(toy_bundle), "-o", index, *columns]) == 0
    assert Collection.open(index).get("a").text == "a good dog"
    assert main(["index", "build", shards, "-o", str(tmp_path / "other"), *columns]) == 1
    assert "toy" in capsys.readouterr().err  # no bundled model has this name
    assert main(["index", "add", shards, index, *columns, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["replaced"] == 2


def test_processes(tmp_path, documents, toy_bundle):
    assert build(documents, toy_bundle, tmp_path / "idx", "--processes", "2") == 0
    assert len(Collection.open(tmp_path / "idx")) == 2


def test_an_existing_collection_is_replaced_on_request_only(tmp_path, documents, toy_bundle, capsys):
    assert build(documents, toy_bundle, tmp_path / "idx") == 0
    assert build(documents, toy_bundle, tmp_path / "idx") == 1
    error = capsys.readouterr().err
    assert "`embedkit index add`" in error
    assert "--replace" in error
    assert build(documents, toy_bundle, tmp_path / "idx", "--replace") == 0
