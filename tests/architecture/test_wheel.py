"""The contents of `pip install embedkit-onnx`, built without git and without the network."""

from __future__ import annotations

import email
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import embedkit
from embedkit.extras import DISTRIBUTION

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BUNDLE = ("bundled/probe.onnx", "bundled/probe.md")  # simulates one more bundled model
BASE = {"numpy", "onnxruntime", "tokenizers"}


KERNELS = {path.stem for path in (ROOT / "embedkit" / "kernels").glob("*.c")}
GENERATED = shutil.ignore_patterns("__pycache__", "*.so", "*.pyd")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """Make a copy of the files in git, but without git."""
    source = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "build_kernels.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "embedkit", source / "embedkit", ignore=GENERATED)
    for name in BUNDLE:
        (source / "embedkit" / name).parent.mkdir(exist_ok=True)
        (source / "embedkit" / name).touch()
    return source


def compiler(folder, refuses=""):
    """Write a C compiler that does not optimise, which takes a third of the time, and fails for some flags."""
    path = folder / "cc"
    path.write_text(f'#!/bin/sh\n{refuses}\nexec cc "$@" -O0\n')
    path.chmod(0o755)
    return str(path)


def try_build(source, kind, **environment):
    """Build a copy of a source; return the process and the folder of the results."""
    place = Path(tempfile.mkdtemp(dir=source.parent))
    if os.name == "posix":
        environment = {"CC": compiler(place), **environment}
    shutil.copytree(source, place / "source")
    command = [sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "--outdir", str(place / "dist")]
    done = subprocess.run(
        [*command, str(place / "source")],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done, place / "dist"


def build(source, kind, **environment):
    """Return the only file that a build of a source creates."""
    done, made = try_build(source, kind, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = made.iterdir()
    return path


def modules_inside(archive):
    return {name for name in archive.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def wheel(source):
    with zipfile.ZipFile(build(source, "wheel")) as archive:
        yield archive


@pytest.fixture(scope="module")
def about(wheel):
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(wheel.read(name))


def requirements(about, extra=None):
    """Return the names of the packages of an extra, or of the bare package if None."""
    found = set()
    for line in about.get_all("Requires-Dist"):
        requirement, _, marker = line.partition(";")
        wanted = f'extra == "{extra}"' if extra else ""
        if marker.strip().replace("'", '"') == wanted:
            found.add(re.split(r"[<>=!~\[ ]", requirement.strip())[0])
    return found


def test_holds_every_module_and_nothing_else(wheel):
    inside = {name for name in modules_inside(wheel) if not name.endswith((".so", ".pyd"))}
    bundled = (ROOT / "embedkit" / "bundled").glob("*")
    page = (path for path in (ROOT / "embedkit" / "serving" / "http" / "page").glob("*") if path.is_file())
    modules = (path for pattern in ("*.py", "*.pyi") for path in (ROOT / "embedkit").rglob(pattern))
    tables = (path for folder in ("cli", "runtime") for path in (ROOT / "embedkit" / folder).glob("*.json"))
    expected = [*modules, *tables, ROOT / "embedkit" / "py.typed", *bundled, *page]
    files = {path.relative_to(ROOT).as_posix() for path in expected if path.is_file()}
    assert inside == files | {f"embedkit/{name}" for name in BUNDLE}


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_holds_the_kernels_for_every_version_of_python(wheel):
    compiled = {name for name in modules_inside(wheel) if name.endswith(".so")}
    assert compiled == {f"embedkit/kernels/{name}.abi3.so" for name in KERNELS}
    assert "-cp311-abi3-" in Path(wheel.filename).name


@pytest.mark.skipif(os.name != "posix", reason="names a compiler that fails")
def test_is_complete_without_a_compiler(source, wheel, tmp_path):
    with zipfile.ZipFile(build(source, "wheel", CC="false")) as bare:
        assert modules_inside(bare) == {name for name in modules_inside(wheel) if not name.endswith(".so")}
        bare.extractall(tmp_path)
    script = (
        "from embedkit import Encoder; from embedkit.kernels import built\n"
        "assert built() and not any(built().values())\n"
        "encoder = Encoder.load('tiny'); assert encoder.verify()['passed']"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(os.name != "posix", reason="names a compiler that fails")
def test_a_release_is_not_built_without_its_kernels(source):
    done, made = try_build(source, "wheel", CC="false", EMBEDKIT_REQUIRE_KERNELS="1")
    assert done.returncode
    assert not list(made.glob("*.whl"))


@pytest.mark.release  # builds another wheel
@pytest.mark.skipif(os.name != "posix", reason="names a compiler by a script")
@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_instructions_that_the_compiler_does_not_support_are_omitted(source, tmp_path):
    old = compiler(tmp_path, refuses='case "$*" in *amx*|*i8mm*) exit 1;; esac')
    with zipfile.ZipFile(build(source, "wheel", CC=old)) as wheel:
        wheel.extractall(tmp_path / "site")
    script = "from embedkit.runtime.kernel_backend import *; print(*native_instructions())"
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "portable" in done.stdout.split()
    assert not {"amx", "neon-i8mm"} & set(done.stdout.split())


@pytest.mark.release  # builds another wheel
@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
def test_a_free_threaded_python_gets_kernels_of_its_own_version(source, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import sysconfig; sysconfig.get_config_vars()['Py_GIL_DISABLED'] = 1", encoding="utf-8"
    )
    path = build(source, "wheel", PYTHONPATH=str(tmp_path))
    assert f"-cp3{sys.version_info.minor}-cp3{sys.version_info.minor}" in path.name
    with zipfile.ZipFile(path) as wheel:
        compiled = {Path(name).name for name in modules_inside(wheel) if name.endswith(".so")}
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    assert compiled == {f"{name}{suffix}" for name in KERNELS}


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
@pytest.mark.parametrize("name", sorted(KERNELS))
def test_a_kernel_does_not_need_the_lock_of_a_free_threaded_python(name, tmp_path):
    """Otherwise, importing it would enable the lock for the whole process."""
    (tmp_path / "Python.h").touch()
    command = ["cc", "-E", "-DPy_GIL_DISABLED", f"-I{tmp_path}", ROOT / "embedkit" / "kernels" / f"{name}.c"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "{Py_mod_gil, Py_MOD_GIL_NOT_USED}" in done.stdout


def test_the_source_distribution_holds_the_kernels_source(source):
    with tarfile.open(build(source, "sdist")) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    endings = ("*.c", "*.h", "*.pyi")
    sources = (path for ending in endings for path in (ROOT / "embedkit" / "kernels").rglob(ending))
    assert "build_kernels.py" in inside
    assert inside >= {path.relative_to(ROOT).as_posix() for path in sources}


def test_holds_the_licence(wheel):
    assert any(name.endswith("/licenses/LICENSE") for name in wheel.namelist())


def test_version_is_that_of_the_code(about):
    assert about["Version"] == embedkit.__version__


def test_requires_three_packages(about):
    assert requirements(about) == BASE


def test_extras(about):
    assert set(about.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    assert "torch" in requirements(about, "train")
    assert "onnx" in requirements(about, "export")
    assert requirements(about, "serve") >= {"faiss-cpu", "httptools", "pydantic"}


@pytest.mark.parametrize("extra", sorted(PROJECT["optional-dependencies"]))
def test_no_extra_installs_a_package_that_overwrites_another(extra):
    rivals = re.compile(r"onnxruntime|faiss-(?!cpu)")
    assert not [line for line in PROJECT["optional-dependencies"][extra] if rivals.match(line)]


@pytest.mark.parametrize("extra", ["train", "export", "serve", "bench"])
def test_all_contains_every_compatible_extra(extra):
    (everything,) = PROJECT["optional-dependencies"]["all"]
    assert extra in re.split(r"[\[\],]", everything)


def test_every_extra_that_a_message_names_exists():
    pattern = re.compile(r"""extra=["'](\w+)["']|embedkit-onnx\[([\w,]+)\]""")
    for path in [*(ROOT / "embedkit").rglob("*.py"), *ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for match in pattern.finditer(path.read_text(encoding="utf-8")):
            named = set((match[1] or match[2]).split(","))
            assert named <= {*PROJECT["optional-dependencies"], "extra", "forbid"}, (
                path
            )  # the last is an option of pydantic


def test_metadata_links_to_the_project(about):
    links = dict(line.split(", ") for line in about.get_all("Project-URL"))
    assert links.keys() == {"Repository", "Documentation", "Changelog", "Issues"}
    assert all(link.startswith(links["Repository"]) for link in links.values())
    assert about["Author"] or about["Author-email"]


def test_the_citation_is_of_this_version_and_repository():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {embedkit.__version__}\ndate-released: " in citation
    assert f"\nrepository-code: {PROJECT['urls']['Repository']}\n" in citation
    assert f"\nlicense: {PROJECT['license']}\n" in citation


def test_the_changelog_dates_this_version():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(
        rf"^## \[{re.escape(embedkit.__version__)}\] - \d{{4}}-\d\d-\d\d$", changelog, flags=re.MULTILINE
    )


def test_it_is_named_as_on_pypi(about):
    assert about["Name"] == DISTRIBUTION


def test_no_command_installs_another_projects_package():
    """PyPI has a package `embedkit`, which is another project."""
    wrong = re.compile(r"""pip install[^`\n]*[ "']embedkit(?![\w-])(?!/)|["'`]embedkit\[\w""")
    files = [*ROOT.glob("*.md"), *ROOT.glob("*.toml")]
    for folder in ("embedkit", "docs", "benchmarks", "examples", "recipes"):
        files += [path for ending in ("py", "md", "toml") for path in (ROOT / folder).rglob(f"*.{ending}")]
    assert not [path for path in files if wrong.search(path.read_text(encoding="utf-8"))]


def test_command_exists(wheel):
    (name,) = [name for name in wheel.namelist() if name.endswith("entry_points.txt")]
    assert wheel.read(name).decode().split("\n")[1] == "embedkit = embedkit.cli.main:main"


@pytest.mark.parametrize(
    ("platform", "archflags", "found"),
    [
        ("linux-x86_64", "", "avx2"),
        ("win-amd64", "", "avx2"),
        ("mingw_x86_64_ucrt", "", "avx2"),
        ("linux-aarch64", "", "neon_dotprod"),
        ("macosx-11.0-arm64", "", "neon_dotprod"),
        ("macosx-10.9-universal2", "-arch arm64", "neon_dotprod"),
        ("macosx-10.9-universal2", "-arch x86_64", "avx2"),
        ("macosx-10.9-universal2", "-arch arm64 -arch x86_64", None),
        ("linux-riscv64", "", None),
    ],
)
def test_the_kernel_is_built_for_the_instruction_sets_of_a_platform(monkeypatch, platform, archflags, found):
    monkeypatch.setenv("ARCHFLAGS", archflags)
    build = runpy.run_path(str(ROOT / "build_kernels.py"))
    names = build["machine_flags"](build["chosen_platform"](platform))
    assert (found in names) if found else names == {}
