"""The description of a machine."""

from __future__ import annotations

import pytest

from embedkit.evaluation.speed.plan import cpu_features

X86 = "processor\t: 0\nflags\t\t: fpu sse4_2 avx2 avx512f avx512_vnni\nbugs\t\t: spectre_v1\n"
ARM = "processor\t: 0\nFeatures\t: fp asimd aes asimddp i8mm\nCPU part\t: 0xd40\n"


@pytest.mark.parametrize(
    ("text", "features"),
    [(X86, ["avx2", "avx512f", "avx512_vnni"]), (ARM, ["asimd", "asimddp", "i8mm"]), ("model name : toy\n", [])],
)
def test_cpu_features(tmp_path, text, features):
    (tmp_path / "cpuinfo").write_text(text)
    assert cpu_features(tmp_path / "cpuinfo") == features
