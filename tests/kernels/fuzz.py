"""Fuzz the kernels with libFuzzer, under AddressSanitizer and UndefinedBehaviorSanitizer: ``make fuzz``.

    python tests/kernels/fuzz.py --seconds 60

Compiles ``fuzz.c`` and all kernels with clang, whose fuzzer searches for inputs that reach new code, and keeps
them in ``build/fuzz/corpus`` for the next run. An input that crashes the program is kept beside them; pass it
as an argument to reproduce the crash.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
KERNELS = ROOT / "embedkit" / "kernels"
BUILD = ROOT / "build" / "fuzz"
FLAGS = ["-O1", "-g", "-ffp-contract=off", "-fsanitize=fuzzer,address,undefined", "-fno-sanitize-recover=all"]
# Python frees nothing on exit. Its own allocator would hide the end of a buffer from the sanitizer.
ENVIRONMENT = {"ASAN_OPTIONS": "detect_leaks=0", "PYTHONMALLOC": "malloc", "EXERCISE_FOLDER": str(HERE)}

sys.path.insert(0, str(ROOT))
from build_kernels import machine_flags  # noqa: E402 - beside the package, not in it


def main() -> int:
    """Compile and run the fuzzer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=60, help="how long to look (default: 60)")
    parser.add_argument("inputs", nargs="*", help="inputs to use once, instead")
    arguments = parser.parse_args()
    if not shutil.which("clang"):
        sys.exit("libFuzzer is a part of clang, which is not installed: apt-get install clang")
    program, corpus = compile_fuzzer(), BUILD / "corpus"
    corpus.mkdir(exist_ok=True)
    fuzz = [
        f"-max_total_time={arguments.seconds}",
        "-max_len=600",
        "-timeout=20",
        f"-artifact_prefix={BUILD}/",
        corpus,
    ]
    found = subprocess.run(
        [program, *(arguments.inputs or [*fuzz, corpus])], env=os.environ | ENVIRONMENT, check=False
    )
    return found.returncode


def compile_fuzzer() -> Path:
    """Compile the program for all instruction sets that clang supports on this machine."""
    BUILD.mkdir(parents=True, exist_ok=True)
    objects, macros = [], []
    for name, flags in {"portable": [], **machine_flags(sysconfig.get_platform())}.items():
        made = BUILD / f"{name}.o"
        command = ["clang", *FLAGS, *flags, "-c", KERNELS / "targets" / f"{name}.c", "-o", made]
        if subprocess.run(command, check=False).returncode == 0:  # type: ignore[arg-type]
            objects.append(made)
            macros.append(f"-DWITH_{name.upper()}")
    sources = [HERE / "fuzz.c", *sorted(KERNELS.glob("*.c"))]
    library, version = sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LDVERSION")
    python = [f"-I{sysconfig.get_path('include')}", f"-L{library}", f"-Wl,-rpath,{library}", f"-lpython{version}"]
    system = shlex.split(f"{sysconfig.get_config_var('LIBS')} {sysconfig.get_config_var('SYSLIBS')}")
    program = BUILD / "fuzz"
    command = ["clang", *FLAGS, *macros, *sources, *objects, *python, *system, "-o", program]
    subprocess.run(command, check=True)  # type: ignore[arg-type]
    return program


if __name__ == "__main__":
    sys.exit(main())
