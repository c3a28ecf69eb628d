"""Check the wheel on a bare Debian: ``make wheel-check``.

    sudo python tests/wheels/bare.py --suite trixie

Builds the wheel from the files in git and checks it with auditwheel and abi3audit. Then creates a Debian with
Python and pip alone, without a compiler, and installs the wheel in it without network. There the kernels must run,
give the bits that ``benchmarks/bits`` records, and encode a file with the command.

Requires root, for debootstrap and chroot, an x86-64 processor, and a release of Debian with Python 3.11 or newer.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
MIRROR = "http://deb.debian.org/debian"
PACKAGES = "python3,python3-venv"
COMPILERS = ("cc", "gcc", "clang", "c99", "tcc")
PYTHON, EMBEDKIT = "/venv/bin/python", "/venv/bin/embedkit"
MODEL = "tiny"
DIGEST = f"""
from embedkit import Encoder
from embedkit.runtime.bundle import read_bundle
from embedkit.runtime.find import find_model
from embedkit.runtime.numerics import digest_of
encoder = Encoder.load("{MODEL}")
print(digest_of(encoder.encode_tokens(encoder.tokenize(read_bundle(find_model("{MODEL}")).golden.texts))))
"""


def main() -> int:
    """Build, install and run the wheel; return 1 if anything is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", default="bookworm", help="the release of Debian (default: bookworm)")
    parser.add_argument("--wheel", type=Path, help="check this wheel, instead of building one")
    arguments = parser.parse_args()
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        sys.exit("a bare Debian is created by debootstrap, as root: apt-get install debootstrap")
    with tempfile.TemporaryDirectory(prefix="embedkit-wheel-") as name:
        folder = Path(name)
        wheels, bare = folder / "wheels", folder / "bare"
        wheel = build(folder, wheels) if arguments.wheel is None else copied(arguments.wheel, wheels)
        call("abi3audit", "--strict", wheel)
        call("debootstrap", "--variant=minbase", f"--include={PACKAGES}", arguments.suite, bare, MIRROR)
        version = inside(bare, "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
        download(wheel, version, wheels)
        shutil.copytree(wheels, bare / "wheels")
        install(bare, wheel.name)
        return check(bare, f"{wheel.name} on Python {version} of Debian {arguments.suite}")


def build(folder: Path, wheels: Path) -> Path:
    """Return a wheel with kernels, of the files in git, under the tag that auditwheel grants it."""
    source = folder / "source"
    source.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, check=True)
    subprocess.run(["tar", "-x"], cwd=source, input=archive.stdout, check=True)
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder / "built", source]
    call(*command, EMBEDKIT_REQUIRE_KERNELS="1")
    (built,) = (folder / "built").glob("*.whl")
    call("auditwheel", "repair", "--wheel-dir", wheels, built)
    (wheel,) = wheels.glob("*.whl")
    return wheel


def copied(wheel: Path, wheels: Path) -> Path:
    """Return a copy of a wheel in an empty folder."""
    wheels.mkdir()
    return Path(shutil.copy(wheel, wheels))


def download(wheel: Path, version: str, wheels: Path) -> None:
    """Download the dependencies of a wheel for a version of Python, as wheels."""
    platforms = [f"--platform=manylinux_2_{minor}_x86_64" for minor in (17, 28)]
    chosen = ["--only-binary=:all:", f"--python-version={version}", *platforms]
    call(sys.executable, "-m", "pip", "download", "--quiet", *chosen, "--dest", wheels, wheel)


def install(bare: Path, wheel: str) -> None:
    """Install a wheel in an environment of its own, without network."""
    found = [name for name in COMPILERS if any(bare.glob(f"usr/*bin/{name}"))]
    if found:
        sys.exit(f"this Debian is not bare: it has {', '.join(found)}")
    inside(bare, "python3", "-m", "venv", "/venv")
    pip = (PYTHON, "-m", "pip", "install", "--quiet", "--no-index", "--find-links=/wheels")
    inside(bare, *pip, f"/wheels/{wheel}")


def check(bare: Path, label: str) -> int:
    """Report what the installed wheel can do; return 1 if anything is missing."""
    print(inside(bare, EMBEDKIT, "doctor"))
    found = json.loads(inside(bare, EMBEDKIT, "doctor", "--json"))
    (bare / "texts.txt").write_text("Bees dance.\nAnts follow a scent.\n", encoding="utf-8")
    inside(bare, EMBEDKIT, "encode", "-m", MODEL, "/texts.txt", "-o", "/embeddings.npy")
    encoded = inside(bare, PYTHON, "-c", "import numpy; print(len(numpy.load('/embeddings.npy')))")
    digest = inside(bare, PYTHON, "-c", DIGEST).strip()
    problems = [
        *found["problems"],
        *[f"no kernel {name}" for name, there in found["kernels"].items() if not there],
        *([] if encoded.strip() == "2" else [f"{encoded.strip()} embeddings of 2 texts"]),
        *([] if digest in recorded() else [f"the golden embeddings have the digest {digest}"]),
    ]
    print("\n".join([f"{label}: kernels on {found['instructions']['chosen']}", *problems]))
    return 1 if problems else 0


def recorded() -> set[str]:
    """Return the digests of the model's golden embeddings as the kernel computes them."""
    rows = json.loads((ROOT / "benchmarks" / "bits" / "results.json").read_text(encoding="utf-8"))["rows"]
    return {row["digest"] for row in rows if row["model"] == MODEL and row["numerics"].startswith("embedkit")}


def call(*command: object, **environment: str) -> None:
    """Run a command on this machine; exit with its output if it fails."""
    words = [str(word) for word in command]
    here = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # the tools beside this Python
    settings = {**os.environ, "PATH": here, **environment}
    done = subprocess.run(words, env=settings, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)}\n{done.stdout}{done.stderr}")


def inside(bare: Path, *command: str) -> str:
    """Run a command in the bare Debian, without network; return its output, or exit with it if it fails."""
    settings = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LC_ALL": "C.UTF-8"}
    chroot = ["unshare", "--net", "chroot", str(bare), *command]
    done = subprocess.run(chroot, env=settings, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
