"""Object stores, by fsspec's file system in memory, and by S3's protocol where moto and s3fs are installed."""

from __future__ import annotations

import importlib.util
import json
import uuid
from pathlib import Path

import numpy as np
import pytest
from toys import write_parquet

from embedkit import Collection, Encoder, object_store
from embedkit.cli.main import main
from embedkit.errors import DataError, InputError, MissingExtraError, ModelNotFoundError, StorageError
from embedkit.object_store import is_url, location, open_store

pytest.importorskip("fsspec")

HAS_S3 = all(importlib.util.find_spec(name) for name in ("moto", "flask", "s3fs", "boto3"))


@pytest.fixture(params=["memory", pytest.param("s3", marks=pytest.mark.skipif(not HAS_S3, reason="needs moto"))])
def base(request, tmp_path, monkeypatch):
    """A prefix of its own, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    if request.param == "s3":
        endpoint = request.getfixturevalue("s3_endpoint")
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    return f"{request.param}://bucket/{uuid.uuid4().hex}"


@pytest.fixture(scope="session")
def s3_endpoint():
    """A server that speaks S3's protocol."""
    import boto3
    from moto.server import ThreadedMotoServer

    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0)
        server.start()
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        boto3.client("s3", endpoint_url=endpoint).create_bucket(Bucket="bucket")
        yield endpoint
        server.stop()


def put(url, content):
    with open_store(url).written() as path:
        path.write_bytes(content)


def test_what_is_a_url():
    assert is_url("s3://bucket/a.jsonl")
    assert is_url("gs://b/c")
    assert is_url("abfs://container@account/x")
    for other in ("s3://", "docs.jsonl", "/s3://x", "milvus:http://x#y", "hf://org/name", 3):
        assert not is_url(other)
    assert location("s3://bucket/a") == "s3://bucket/a"
    assert str(location("a/../b")) == "a/../b"
    assert not isinstance(location("a"), str)


def test_an_object_is_written_whole_read_and_removed(base):
    store = open_store(base)
    assert store.names() == []
    put(f"{base}/deep/one.txt", b"1")
    put(f"{base}/two.txt", b"22")
    assert store.names() == ["deep/one.txt", "two.txt"]
    assert (store / "two.txt").read() == b"22"
    with (store / "two.txt").open() as file:
        file.seek(1)
        assert file.read() == b"2"
    (store / "two.txt").remove()
    (store / "two.txt").remove()
    assert store.names() == ["deep/one.txt"]


def test_an_interrupted_write_leaves_nothing(base):
    def interrupt():
        with (open_store(base) / "x").written() as path:
            path.write_bytes(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt()
    assert open_store(base).names() == []


def test_a_failing_upload_is_a_storage_error(base, monkeypatch):
    store = open_store(base)
    monkeypatch.setattr(store.system, "put_file", lambda *_, **__: (_ for _ in ()).throw(OSError("no room")))
    with pytest.raises(StorageError, match=r"cannot write .*/x: no room"), (store / "x").written() as path:
        path.write_bytes(b"content")


def test_a_copy_is_kept_until_the_object_changes(base, monkeypatch):
    url = f"{base}/docs.txt"
    put(url, b"one\n")
    path = open_store(url).fetch()
    assert path.name == "docs.txt"
    assert path.read_bytes() == b"one\n"
    with monkeypatch.context() as patch:
        patch.setattr(open_store(url).system, "get_file", None)
        assert open_store(url).fetch() == path
    put(url, b"two\n")
    changed = open_store(url).fetch()
    assert changed != path
    assert changed.read_bytes() == b"two\n"


def test_a_folder_is_copied_whole(base):
    put(f"{base}/a.parquet", b"a")
    put(f"{base}/deep/_manifest.json", b"{}")
    folder = open_store(base).fetch()
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")} == {
        "a.parquet",
        "deep/_manifest.json",
    }


def test_a_folder_is_copied_by_one_listing_until_an_object_changes(base, monkeypatch):
    for number in range(5):
        put(f"{base}/{number}.txt", b"a")
    store = open_store(base)
    folder = store.fetch()
    asked, info = [], store.system.info
    with monkeypatch.context() as patch:
        patch.setattr(store.system, "info", lambda path, **options: asked.append(path) or info(path, **options))
        patch.setattr(store.system, "get_file", None)
        assert store.fetch() == folder
    assert len(asked) < 5
    put(f"{base}/3.txt", b"b")
    changed = store.fetch()
    assert changed != folder
    assert (changed / "3.txt").read_bytes() == b"b"


@pytest.mark.parametrize("key", ["models/../../../x", "models/a/../../x"])
def test_a_key_that_leads_out_of_the_folder_of_its_copy_is_refused(base, monkeypatch, tmp_path, key):
    store = open_store(f"{base}/models")
    root = str(store.path).removesuffix("models")
    listing = {f"{root}{key}": {"ETag": "1"}, f"{root}models/config.json": {"ETag": "2"}}
    monkeypatch.setattr(type(store.system), "find", lambda *_, **__: listing)
    monkeypatch.setattr(type(store.system), "get_file", lambda _, __, target: Path(target).write_text("x"))
    with pytest.raises(DataError, match="leads out of the folder of its copy"):
        store.fetch()
    assert not list(tmp_path.rglob("x"))


def test_what_is_missing_is_told(base, encoder_path):
    with pytest.raises(DataError, match=f"there is nothing at {base}/docs.jsonl"):
        Collection.build(f"{base}/docs.jsonl", encoder=Encoder.load(encoder_path), path="unused")
    with pytest.raises(ModelNotFoundError, match=f"there is nothing at {base}/model.onnx"):
        Encoder.load(f"{base}/model.onnx")


def test_refused_credentials_are_told(base, monkeypatch):
    class NoCredentialsError(Exception):
        pass

    def refuse(*_, **__):
        raise NoCredentialsError("Unable to locate credentials")

    monkeypatch.setattr(open_store(base).system, "isfile", refuse)
    with pytest.raises(ModelNotFoundError, match=r"Unable to locate credentials; give credentials as"):
        Encoder.load(f"{base}/model.onnx")


def test_a_missing_client_names_its_extra(monkeypatch):
    monkeypatch.setitem(object_store._CLIENTS, "gs", "no_such_client")
    import fsspec.core

    def missing(_):
        raise ImportError("Please install gcsfs")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(MissingExtraError, match=r"embedkit-onnx\[gs\]"):
        open_store("gs://bucket/x")


@pytest.fixture(scope="module")
def encoder_path(toy_bundle):
    return toy_bundle


def test_a_bundle_is_loaded(base, encoder_path):
    put(f"{base}/toy.onnx", encoder_path.read_bytes())
    encoder = Encoder.load(f"{base}/toy.onnx")
    np.testing.assert_array_equal(encoder.encode(["a dog"]), Encoder.load(encoder_path).encode(["a dog"]))


def test_documents_are_indexed(base, encoder_path, tmp_path):
    rows = [{"id": "a", "text": "a dog", "lang": "en"}, {"id": "b", "text": "the sea"}]
    put(f"{base}/docs.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    collection = Collection.build(f"{base}/docs.jsonl", encoder=Encoder.load(encoder_path), path=tmp_path / "idx")
    assert collection.search("a dog", k=1)[0].metadata == {"lang": "en"}
    put(f"{base}/bad.jsonl", b'{"text": "a dog"}\n{"text": 3}\n')
    with pytest.raises(DataError, match=f"{base}/bad.jsonl:2: expected a string"):
        Collection.build(f"{base}/bad.jsonl", encoder=Encoder.load(encoder_path), path=tmp_path / "bad")


def test_shards_are_written_resumed_and_indexed(base, encoder_path, tmp_path, capsys):
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"id": [str(n) for n in range(10)], "text": [f"a dog {n}" for n in range(10)]})
    for name, part in (("one", table[:6]), ("two", table[6:])):
        write_parquet(tmp_path / f"{name}.parquet", part)
        put(f"{base}/pages/{name}.parquet", (tmp_path / f"{name}.parquet").read_bytes())
    command = ["encode", "-m", str(encoder_path), f"{base}/pages/", "-o", f"{base}/out", "--rows-per-shard", "4"]
    assert main(command) == 0
    out = open_store(f"{base}/out")
    shards = [f"shard-00000{number}.parquet" for number in range(3)]
    assert out.names() == ["_manifest.json", *shards]
    before = [(out / name).read() for name in shards]
    (out / shards[1]).remove()
    capsys.readouterr()
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows_now"] == 2
    assert [(out / name).read() for name in shards] == before
    collection = Collection.build(f"{base}/out/", encoder=Encoder.load(encoder_path), path=tmp_path / "idx")
    assert collection.search("a dog 3", k=10)[0].score > 0.99
    assert len(collection) == 10


def test_shards_of_another_job_are_refused(base, encoder_path, tmp_path, capsys):
    write_parquet(tmp_path / "in.parquet", {"text": ["a dog"]})
    command = ["encode", "-m", str(encoder_path), str(tmp_path / "in.parquet"), "-o", f"{base}/out"]
    assert main(command) == 0
    assert main([*command, "--rows-per-shard", "1"]) == 1
    assert "was started with --rows-per-shard" in capsys.readouterr().err
    put(f"{base}/other/notes.txt", b"mine")
    assert main([*command[:-1], f"{base}/other"]) == 1
    assert "holds notes.txt" in capsys.readouterr().err


def test_an_output_within_the_input_is_refused(base, encoder_path):
    bulk = pytest.importorskip("embedkit.serving.bulk")
    with (open_store(base) / "a.parquet").written() as path:
        write_parquet(path, {"text": ["a dog"]})
    with pytest.raises(InputError, match="is inside the input"):
        bulk.BulkEncoding.prepare(base, f"{base}/out", model=encoder_path)
    # A folder beside the input whose name begins alike is not in it.
    assert bulk.BulkEncoding.prepare(base, f"{base}-embedded", model=encoder_path).rows == 1
