import json

import numpy as np
import pytest

from embedkit.cli.main import main
from embedkit.modeling.initialisation import Size, random
from embedkit.runtime.encoder import Encoder
from embedkit.runtime.tokenization import Tokenizer


@pytest.fixture
def model(toy_tokenizer_json, tmp_path):
    encoder = random(Tokenizer(toy_tokenizer_json, 16), Size(1, 32, 2), max_length=16, seed=0)
    encoder.save(tmp_path / "toy")
    return tmp_path / "toy"


def test_a_model_becomes_a_bundle_and_a_table(model, tmp_path, capsys):
    code = main(["export", str(model), "-o", str(tmp_path / "toy.onnx"), "--target", "arm64"])

    shown = capsys.readouterr().out
    assert code == 0
    assert Encoder.load(tmp_path / "toy.onnx").dimension == 32
    assert "toy, 32 dimensions, up to 16 tokens, int8 for arm64" in shown
    assert [line.split()[:2] for line in shown.splitlines()[1:]] == [
        [gate, "passed"]
        for gate in ("parity", "operators", "agreement", "batch_invariance", "size", "weights", "texts")
    ]


def test_length_and_words_can_be_chosen(model, tmp_path, capsys):
    command = ["export", str(model), "-o", str(tmp_path / "toy.onnx"), "--precision", "fp32"]

    assert main([*command, "--max-length", "8", "--word-table", "int4"]) == 0

    assert Encoder.load(tmp_path / "toy.onnx").max_length == 8
    assert "up to 8 tokens, fp32 with int4 words, " in capsys.readouterr().out


def test_json_holds_the_whole_manifest(model, tmp_path, capsys):
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("sentence1\tsentence2\tscore\na cat\ta dog\t3\na cat\tthe sea\t1\nthe sun\tthe moon\t4\n")
    command = ["export", str(model), "-o", str(tmp_path / "toy.onnx"), "--precision", "fp32", "--json"]

    code = main([*command, "--name", "mine", "--licence", "MIT", "--dev", str(pairs)])

    shown = capsys.readouterr()
    if code:  # a random model may rank three pairs backwards; then the gate reports it and nothing is written
        assert "retention" in shown.err
        assert not (tmp_path / "toy.onnx").exists()
        return
    report = json.loads(shown.out)
    assert (report["manifest"]["name"], report["manifest"]["licence"]) == ("mine", "MIT")
    assert report["manifest"]["gates"]["retention"]["pairs"] == "pairs"
    assert report["fingerprint"] == Encoder.load(tmp_path / "toy.onnx").fingerprint


def test_calibrated_bundles_encode_to_bytes(model, tmp_path):
    texts, bundle, output = tmp_path / "texts.txt", tmp_path / "toy.onnx", tmp_path / "rows.npy"
    texts.write_text("a cat\nthe sea\nthe sun and the moon\n")
    export = ["export", str(model), "-o", str(bundle), "--precision", "fp32"]

    assert main([*export, "--calibration", str(texts)]) == 0
    assert main(["encode", "-m", str(bundle), str(texts), "-o", str(output), "--precision", "uint8"]) == 0

    rows = np.load(output)
    assert (rows.shape, rows.dtype) == ((3, 32), np.uint8)
    # The range of each dimension is computed from these texts, so its ends are among their values.
    assert (rows.min(axis=0) == 0).all()
    assert (rows.max(axis=0) == 255).all()


def test_embeddings_are_spread_over_a_file_of_texts(model, tmp_path):
    words = np.random.default_rng(0).choice(["the", "cat", "dog", "house", "sea", "walks", "far"], (80, 5))
    (tmp_path / "texts.txt").write_text("\n".join(map(" ".join, words)), encoding="utf-8")
    command = ["export", str(model), "--precision", "fp32", "--calibration", str(tmp_path / "texts.txt")]

    assert main([*command, "-o", str(tmp_path / "plain.onnx")]) == 0
    assert main([*command, "-o", str(tmp_path / "spread.onnx"), "--whitening-power", "0.4"]) == 0

    texts = [" ".join(row) for row in words]
    plain, spread = (Encoder.load(tmp_path / f"{name}.onnx").encode(texts) for name in ("plain", "spread"))
    assert np.linalg.norm(spread.mean(axis=0)) < np.linalg.norm(plain.mean(axis=0)) / 2


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--whitening-power", "1.5", "--calibration", "no texts"],
            "error: --whitening-power must be from 0 to 1, not 1.5\n",
        ),
        (["--vocabulary-size", "9"], "error: --vocabulary-size limits a vocabulary that is pruned to texts"),
    ],
)
def test_unsuitable_flags_are_refused_before_anything_is_read(tmp_path, capsys, flags, message):
    assert main(["export", "no model", "-o", str(tmp_path / "out"), *flags]) == 1
    assert capsys.readouterr().err.startswith(message)


@pytest.mark.parametrize(
    "command", [["export"], ["distill-static"], ["adapt", "texts.txt"]], ids=lambda command: command[0]
)
def test_an_existing_file_is_replaced_on_request_only(tmp_path, capsys, command):
    bundle = tmp_path / "mine.onnx"
    bundle.write_bytes(b"mine")
    command = [command[0], "no model", *command[1:], "-o", str(bundle)]
    assert main(command) == 1
    assert f"there is a file {bundle} already; add --replace" in capsys.readouterr().err
    assert main([*command, "--replace"]) == 1
    assert "no model" in capsys.readouterr().err
    assert bundle.read_bytes() == b"mine"


def test_the_files_of_an_existing_folder_are_replaced_on_request_only(model, tmp_path, capsys):
    mine = tmp_path / "folder" / "mine"
    mine.parent.mkdir()
    mine.write_bytes(b"mine")
    command = ["export", str(model), "-o", str(mine.parent), "--format", "sentence-transformers"]
    command += ["--precision", "fp32"]
    assert main(command) == 1
    assert f"there is a folder {mine.parent} with files already; add --replace" in capsys.readouterr().err
    assert mine.exists()
    assert main([*command, "--replace"]) == 0
    assert sorted(path.name for path in mine.parent.glob("m*")) == ["model.safetensors", "modules.json"]


def test_nothing_of_a_bundle_s_folder_can_be_chosen(model, tmp_path, capsys):
    bundle = str(tmp_path / "toy.onnx")
    assert main(["export", str(model), "-o", bundle, "--precision", "fp32"]) == 0
    command = ["export", bundle, "-o", str(tmp_path / "st"), "--format", "sentence-transformers"]
    for flag, value in {
        "--precision": "int8",
        "--word-table": "int4",
        "--target": "arm64",
        "--name": "toy",
        "--licence": "MIT",
        "--max-length": "8",
    }.items():
        assert main([*command, flag, value]) == 1
        assert capsys.readouterr().err.endswith(f"holds its own graph as it is; leave out {flag}\n")
    assert not (tmp_path / "st").exists()
    assert main(command) == 0


def test_a_vocabulary_is_pruned_to_a_file_of_texts(model, tmp_path, capsys):
    texts = tmp_path / "texts.txt"
    texts.write_text("the cat sleeps\na dog in the house\n")
    command = ["export", str(model), "-o", str(tmp_path / "toy.onnx"), "--vocabulary", str(texts)]

    assert main([*command, "--vocabulary-size", "90"]) == 0

    assert "vocabulary        passed  pieces 90, pieces before 5" in capsys.readouterr().out


def test_a_vocabulary_is_pruned_to_the_text_of_a_run(model, tmp_path, capsys):
    (tmp_path / "texts.txt").write_text("the cat sleeps\na dog in the house\n")
    run = tmp_path / "run"
    run.mkdir()
    run.joinpath("config.toml").write_text(
        f"""
        method = "simcse"
        cache = '{tmp_path / "cache"}'
        corpus = [{{path = '{tmp_path / "texts.txt"}'}}]
        """
    )
    command = ["export", str(model), "-o", str(tmp_path / "toy.onnx"), "--vocabulary", str(run)]

    assert main([*command, "--vocabulary-size", "90"]) == 0

    assert "vocabulary        passed  pieces 90, pieces before 5" in capsys.readouterr().out


def test_static_scales_are_calibrated_on_a_file_of_texts(model, tmp_path, capsys):
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "the cat sleeps in the house"}\n{"text": "a dog"}\n')
    command = ["export", str(model), "-o", str(tmp_path / "toy.onnx"), "--precision", "int8-static"]

    assert main(command) == 1
    assert "needs calibration texts" in capsys.readouterr().err
    assert main([*command, "--calibration", str(texts)]) == 0
    assert "int8-static for cpu-avx2" in capsys.readouterr().out
