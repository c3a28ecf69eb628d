"""The C kernel alone, without Python or a model: known bits on every target, and no fault under the sanitizers.

The digests are the same for every processor and compiler. To run them on another processor, or under an emulator,
compile ``tests/kernels/bits.c`` with the targets as ``build_kernels.py`` does.
"""

from __future__ import annotations

import platform
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TARGETS = ROOT / "embedkit" / "kernels" / "targets"
DIGESTS = [
    "52b0385a964d90d4",
    "77d7d0c00b6bd035",
    "e6862fb93e7e1a7c",
    "a111ace872c67c5e",
    "20c3bbdd08ec2155",
    "172e7b69c7d51853",
    "1d504707317e8c47",
    "da406dde14db866e",
    "9d05bb74990fbc45",
    "976b9949209d554c",
    "16ba48bbd2a82a21",
    "b7ef47cd00175a8b",
    "2d96c38de12f76ee",
    "b38cf520af4907b8",
    "ec52d3c99423b043",
]
X86 = {
    "avx2": "-mavx2 -mfma",
    "avx_vnni": "-mavx2 -mfma -mavxvnni",
    "avx512": "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx2 -mfma",
}
ARM = {"neon_dotprod": "-march=armv8.2-a+dotprod", "neon_i8mm": "-march=armv8.2-a+dotprod+i8mm"}
FLAGS = {"x86_64": X86, "aarch64": ARM}.get(platform.machine(), {})

pytestmark = pytest.mark.skipif(sys.platform == "win32" or not shutil.which("cc"), reason="needs a C compiler")


def compile_bits(folder: Path, *flags: str) -> Path:
    """Compile the program for all targets that the compiler supports."""
    objects, macros = [], []
    for name, instructions in {"portable": "", **FLAGS}.items():
        made = folder / f"{name}.o"
        command = ["cc", *flags, "-ffp-contract=off", *shlex.split(instructions)]
        done = subprocess.run(
            [*command, "-c", TARGETS / f"{name}.c", "-o", made], check=False, capture_output=True
        )
        if done.returncode == 0:
            objects.append(made)
            macros.append(f"-DWITH_{name.upper()}")
    program = folder / "bits"
    sources = [ROOT / "tests" / "kernels" / "bits.c", *objects]
    command = ["cc", *flags, *macros, *sources, "-lm", "-pthread", "-o", program]
    subprocess.run(command, check=True, capture_output=True)  # type: ignore[arg-type]
    return program


def check_bits(program: Path) -> None:
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^\w+", done.stdout, flags=re.MULTILINE) == DIGESTS


@pytest.mark.release  # compiles every target; test_kernel_backend.py compares the bits of those that were built
def test_every_target_returns_the_known_bits(tmp_path: Path) -> None:
    check_bits(compile_bits(tmp_path, "-O1"))


def test_functions_are_as_accurate_as_their_comments_state(tmp_path: Path) -> None:
    program = tmp_path / "accuracy"
    source = ROOT / "tests" / "kernels" / "accuracy.c"
    subprocess.run(["cc", "-O1", "-ffp-contract=off", source, "-lm", "-o", program], check=True)  # type: ignore[list-item]
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.release
@pytest.mark.timeout(3600)
def test_sanitizers_find_no_fault(tmp_path: Path) -> None:
    try:
        program = compile_bits(tmp_path, "-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    except subprocess.CalledProcessError:
        pytest.skip("this compiler has no sanitizers")
    check_bits(program)
