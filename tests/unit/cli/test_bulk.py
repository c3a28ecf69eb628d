"""`embedkit encode` from Parquet into a folder: cost, result, and resuming after a kill."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import time

import pytest
from toys import write_parquet

from embedkit.cli.main import main

HANGS = """
import sys, threading
from embedkit.cli.main import main
from embedkit.serving.bulk.shard_encoder import ShardEncoder

encode = ShardEncoder.encode

def hang(self, shard, advance=None):
    if shard.file == "shard-000005.parquet":
        threading.Event().wait()
    return encode(self, shard, advance)

ShardEncoder.encode = hang
sys.exit(main())
"""
"""A run that hangs in its sixth shard, so that it is killed there."""

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def pages(tmp_path):
    rows = {"key": list(range(30)), "body": [f"the dog number {row}" for row in range(30)]}
    write_parquet(tmp_path / "pages.parquet", rows)
    return tmp_path / "pages.parquet"


def digests(folder):
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_the_cost_is_logged_first_and_the_result_last(toy_bundle, pages, tmp_path, capsys):
    command = ["encode", "-m", str(toy_bundle), str(pages), "-o", str(tmp_path / "out"), "--text-column", "body"]
    command += ["--rows-per-shard", "8", "--keep", "key"]
    assert main([*command, "--check"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("30 texts to embed in 4 shards: 0 MB of embeddings, about 0 s")
    assert not (tmp_path / "out").exists()
    assert main([*command, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["rows"], report["rows_now"], report["shards"], report["model"]) == (30, 30, 4, "toy")
    assert parquet.read_table(tmp_path / "out").column_names == ["key", "embedding"]
    (tmp_path / "out" / "shard-000003.parquet").unlink()
    assert main(command) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("6 texts to embed in 1 shard (3 done)")
    assert "30 rows in 4 shards with toy, 6 of them now" in captured.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--processes", "0"], "workers must be"),
        (["-o", "out.npy", "--engine", "ray"], "--engine is for an output folder, not for out.npy"),
        (["-o", "out.npy", "--keep", "key"], "--keep is for an output folder"),
    ],
)
def test_invalid_options_are_reported_in_one_line(toy_bundle, pages, tmp_path, capsys, options, words):
    command = ["encode", "-m", str(toy_bundle), str(pages), "-o", str(tmp_path / "out"), "--text-column", "body"]
    assert main([*command, "-q", *options]) == 1
    captured = capsys.readouterr().err
    assert words in captured
    assert len(captured.splitlines()) == 1


@pytest.mark.parametrize(("options", "extra"), [([], "bulk"), (["--engine", "ray"], "ray")])
def test_one_extra_brings_all_that_an_engine_needs(pages, tmp_path, capsys, monkeypatch, options, extra):
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert main(["encode", "-m", "tiny", str(pages), "-o", str(tmp_path / "out"), *options]) == 1
    assert f'pip install "embedkit-onnx[{extra}]"' in capsys.readouterr().err


def test_a_folder_is_made_from_parquet_only(toy_bundle, tmp_path, capsys):
    (tmp_path / "in.txt").write_text("a dog\n")
    assert main(["encode", "-m", str(toy_bundle), str(tmp_path / "in.txt"), "-o", str(tmp_path / "out")]) == 1
    assert "in.txt use an output ending in .npy, .parquet or .jsonl" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_a_killed_run_resumes_to_the_same_bytes(pages, tmp_path):
    command = ["encode", "-m", "tiny", str(pages), "--text-column", "body", "--rows-per-shard", "1", "-q"]
    assert main([*command, "-o", str(tmp_path / "whole")]) == 0
    run = subprocess.Popen([sys.executable, "-c", HANGS, *command, "-o", str(tmp_path / "out")])
    while not (tmp_path / "out" / "shard-000004.parquet").exists() and run.poll() is None:
        time.sleep(0.001)
    run.kill()
    run.wait()
    assert len(list((tmp_path / "out").glob("shard-*"))) == 5
    assert main([*command, "-o", str(tmp_path / "out")]) == 0
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")
