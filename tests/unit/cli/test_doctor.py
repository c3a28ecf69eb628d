"""`embedkit doctor`: facts about this machine, and problems in one sentence each."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError

import pytest

from embedkit.cli import doctor
from embedkit.cli.main import main
from embedkit.runtime import find
from embedkit.runtime.kernel_backend import native_instructions


@pytest.fixture
def distributions(monkeypatch):
    """Pretend that exactly these distributions are installed; maps name to version."""

    def install(found):
        def version(name):
            if name in found:
                return found[name]
            raise PackageNotFoundError(name)

        monkeypatch.setattr("importlib.metadata.version", version)

    return install


@pytest.fixture
def bundled(monkeypatch, tmp_path):
    """Return a folder that replaces that of the bundled models."""
    monkeypatch.setattr(find, "BUNDLED", tmp_path)
    return tmp_path


def report(capsys):
    code = main(["doctor", "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("bundled")
def test_a_healthy_machine(capsys):
    code, found = report(capsys)
    assert (code, found["problems"]) == (0, [])
    assert found["python"] == sys.version.split()[0]
    assert "CPUExecutionProvider" in found["onnxruntime"]["providers"]
    assert 1 <= found["threads"]["usable"] <= found["threads"]["processors"]


def test_the_verdict_comes_first_and_facts_follow(bundled, toy_bundle, capsys):
    shutil.copy(toy_bundle, bundled / "toy.onnx")
    assert main(["doctor"]) == 0
    verdict, *lines = capsys.readouterr().out.splitlines()
    assert verdict.endswith("works on this machine: no problems found")
    assert {line.split()[0] for line in lines} == {"python", "packages", "processor", "kernels", "model", "extras"}
    assert any(line.startswith("  model       toy: reproduces the results recorded at export") for line in lines)


def test_problems_follow_the_verdict(bundled, toy_bundle, capsys):
    (bundled / "toy.onnx").write_bytes(toy_bundle.read_bytes()[:-100])
    assert main(["doctor"]) == 1
    verdict, problem, *_ = capsys.readouterr().out.splitlines()
    assert verdict.endswith("has 1 problem on this machine:")
    assert problem.startswith("  problem     the bundled model toy cannot be used")


@pytest.mark.usefixtures("bundled")
def test_two_onnx_runtimes_are_a_problem(distributions, capsys):
    distributions({"onnxruntime": "1.31.1", "onnxruntime-gpu": "1.31.0"})
    code, found = report(capsys)
    assert code == 1
    (problem,) = found["problems"]
    assert problem.startswith("onnxruntime and onnxruntime-gpu are both installed")
    assert "pip uninstall -y onnxruntime onnxruntime-gpu" in problem


def install(folder, name, version, *files):
    about = folder / f"{name}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (about / "RECORD").write_text("".join(f"{file},,\n" for file in files))


@pytest.mark.usefixtures("bundled")
@pytest.mark.parametrize(
    ("files", "problems"),
    [(["embedkit/__init__.py", "embedkit-9.9.dist-info/RECORD"], 1), (["__editable__.embedkit-9.9.pth"], 0)],
    ids=["in the same folder", "elsewhere"],
)
def test_another_projects_embedkit_is_a_problem(tmp_path, monkeypatch, capsys, files, problems):
    install(tmp_path / "site", "embedkit", "9.9", *files)
    monkeypatch.syspath_prepend(tmp_path / "site")
    code, found = report(capsys)
    assert (code, len(found["problems"])) == (problems, problems)
    for problem in found["problems"]:
        assert problem.startswith("the package embedkit 9.9, another project, is installed in the folder of")
        assert "`pip uninstall -y embedkit embedkit-onnx`, then run `pip install embedkit-onnx`" in problem


def test_bundled_models_of_both_kinds_are_checked(bundled, toy_bundle, toy_cross_bundle, capsys):
    shutil.copy(toy_bundle, bundled / "toy.onnx")
    shutil.copy(toy_cross_bundle, bundled / "pairs.onnx")
    code, found = report(capsys)
    assert (code, {name: model["passed"] for name, model in found["bundled"].items()}) == (
        0,
        {"toy": True, "pairs": True},
    )


def test_a_bundled_model_that_computes_something_else_is_a_problem(bundled, toy_bundle, monkeypatch, capsys):
    shutil.copy(toy_bundle, bundled / "toy.onnx")
    finding = {"passed": False, "texts": 3, "same_tokens": True, "difference": 0.5, "tolerance": 1e-4}
    finding["same_bits"] = False
    monkeypatch.setattr("embedkit.runtime.encoder.Encoder.verify", lambda _self: finding)
    code, found = report(capsys)
    assert code == 1
    assert "differ on this machine: by 5.0e-01, where at most 1.0e-04 is allowed" in found["problems"][0]
    assert found["problems"][0].endswith("the bundle records other bits")


@pytest.mark.usefixtures("bundled")
@pytest.mark.skipif(not native_instructions(), reason="no kernel")
def test_unavailable_instructions_are_a_problem(monkeypatch, capsys):
    monkeypatch.setenv("EMBEDKIT_INSTRUCTIONS", "mmx")
    code, found = report(capsys)
    assert code == 1
    assert found["instructions"]["chosen"] is None
    assert found["problems"][0].startswith("the instructions 'mmx' of EMBEDKIT_INSTRUCTIONS are unknown; here are")


def test_extras_name_missing_packages(monkeypatch, distributions):
    requirements = [
        "numpy>=2.0",
        'torch>=2.4; extra == "train"',
        'transformers<6,>=4.57; extra == "train"',
        'faiss-cpu>=1.9; extra == "serve"',
        'embedkit-onnx[serve,train]; extra == "all"',
    ]
    monkeypatch.setattr("importlib.metadata.requires", lambda _name: requirements)
    distributions({"torch": "2.13.0", "faiss-cpu": "1.15.1"})
    missing = doctor._missing_by_extra()
    assert missing == {"train": ["transformers"], "serve": []}
    assert list(doctor._to_lines(doctor._examine()))[-3:] == [
        "  extras      installed: serve",
        "  extras      not installed: train",
        '  extras      to add one: pip install "embedkit-onnx[NAME]", or in a checkout: pip install ".[NAME]"',
    ]


def test_only_the_base_packages_are_needed():
    script = (
        "import sys\n"
        "for name in ('torch', 'transformers', 'onnx', 'faiss', 'scipy', 'datasets', 'huggingface_hub'):\n"
        "    sys.modules[name] = None\n"
        "from embedkit.cli.main import main\n"
        "sys.exit(main(['doctor']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_missing_onnx_runtime_is_reported():
    script = (
        "import sys\n"
        "sys.modules['onnxruntime'] = None\n"
        "from embedkit.cli.main import main\n"
        "sys.exit(main(['doctor']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert "problem" in done.stdout
    assert "no execution providers" in done.stdout
