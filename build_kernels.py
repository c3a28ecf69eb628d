"""Compiles the kernels, each instruction set of ``embedkit.kernels.bert`` with its own flags.

An instruction set that the compiler does not support is omitted, and so is a module that cannot be compiled:
embedkit works without them. ``EMBEDKIT_REQUIRE_KERNELS=1``, set for releases, makes both an error.
``EMBEDKIT_KERNEL_FLAGS`` holds further compiler flags, such as those of sanitizers.
"""

from __future__ import annotations

import os
import shlex
import sysconfig
from pathlib import Path
from platform import machine as host_machine
from typing import ClassVar

from setuptools import Extension
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

_TARGETS = Path("embedkit/kernels/targets")
_HEADERS = ("embedkit/kernels/*.h", "embedkit/kernels/targets/*.[ch]")
_STRICT = {
    "unix": ["-O3", "-ffp-contract=off"],
    "mingw32": ["-O3", "-ffp-contract=off"],
    "msvc": ["/O2", "/fp:precise"],
}
_AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni", "-mavx2", "-mfma"]
_X86 = {
    "avx2": (["-mavx2", "-mfma"], ["/arch:AVX2"]),
    "avx_vnni": (["-mavx2", "-mfma", "-mavxvnni"], ["/arch:AVX2"]),
    "avx512": (_AVX512, ["/arch:AVX512"]),
    "amx": ([*_AVX512, "-mamx-tile", "-mamx-int8"], ["/arch:AVX512"]),
}
_ARM = {
    "neon_dotprod": (["-march=armv8.2-a+dotprod"], []),
    "neon_i8mm": (["-march=armv8.2-a+dotprod+i8mm"], []),
}
_MACHINES = {"x86_64": _X86, "amd64": _X86, "aarch64": _ARM, "arm64": _ARM}


def machine_flags(platform: str, *, msvc: bool = False) -> dict[str, list[str]]:
    """Return the compiler flags of each instruction set of a machine beyond the portable one, by name.

    Args:
        platform: name of the platform, as `sysconfig.get_platform` returns it.
        msvc: whether to return the flags of Microsoft's compiler.
    """
    described = f"_{platform.replace('-', '_').lower()}_"  # such as macosx_11_0_arm64, or mingw_x86_64_ucrt
    found = next((targets for name, targets in _MACHINES.items() if f"_{name}_" in described), {})
    return {name: theirs if msvc else unix for name, (unix, theirs) in found.items()}


def chosen_platform(platform: str) -> str:
    """Return the platform to build for: of a universal2 Python, the one processor of ``ARCHFLAGS``, or both."""
    named = os.environ.get("ARCHFLAGS", "").split()[1::2]
    return platform.replace("universal2", named[0]) if len(named) == 1 else platform


def _is_free_threaded() -> bool:
    """Whether this is a free-threaded build of Python, which has no limited API."""
    return bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


class BuildWheel(bdist_wheel):
    """``bdist_wheel`` that builds one wheel for all versions of Python, except for free-threaded ones."""

    def finalize_options(self) -> None:
        """Give the wheel of a free-threaded build the tag of its version."""
        if _is_free_threaded():
            self.py_limited_api = ""
        super().finalize_options()


class BuildKernels(build_ext):
    """``build_ext`` that compiles one source for several instruction sets."""

    _MULTIPLE: ClassVar[str] = "embedkit.kernels.bert"

    def run(self) -> None:
        """Build for this processor alone where Python is for two: no instruction set is of both."""
        if self.plat_name.endswith("universal2"):
            os.environ.setdefault("ARCHFLAGS", f"-arch {host_machine()}")
        super().run()

    def build_extension(self, ext: Extension) -> None:
        """Compile the instruction sets of a module before the module."""
        is_required = os.environ.get("EMBEDKIT_REQUIRE_KERNELS") == "1"
        ext.optional = not is_required
        further = shlex.split(os.environ.get("EMBEDKIT_KERNEL_FLAGS", ""))
        ext.extra_compile_args = [*_STRICT[self.compiler.compiler_type], *further]
        ext.depends = [str(path) for pattern in _HEADERS for path in Path().glob(pattern)]
        if _is_free_threaded():
            ext.define_macros, ext.py_limited_api = [], False
        if ext.name == self._MULTIPLE:
            self.force = True  # setuptools does not recompile when only macros change
            self._compile_target(ext, "portable", [])
            is_msvc = self.compiler.compiler_type == "msvc"
            for name, flags in machine_flags(chosen_platform(self.plat_name), msvc=is_msvc).items():
                try:
                    self._compile_target(ext, name, flags)
                except CompileError:
                    if is_required:
                        raise
                    self.warn(f"this compiler has no {name}: {self._MULTIPLE} is built without")
        super().build_extension(ext)

    def _compile_target(self, ext: Extension, name: str, flags: list[str]) -> None:
        ext.extra_objects += self.compiler.compile(
            [str(_TARGETS / f"{name}.c")],
            output_dir=self.build_temp,
            debug=self.debug,
            extra_postargs=[*ext.extra_compile_args, *flags],
            depends=ext.depends,
        )
        ext.define_macros.append((f"WITH_{name.upper()}", "1"))
