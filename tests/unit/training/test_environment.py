"""What a run writes down of the machine."""

from __future__ import annotations

import torch

from embedkit import __version__
from embedkit.training.environment import _processor, environment


def test_it_names_versions_platform_processor_and_threads():
    found = environment()
    assert (found["packages"]["embedkit"], found["packages"]["torch"]) == (__version__, torch.__version__)
    assert found["threads"] == torch.get_num_threads()
    assert found["platform"]
    assert found["processor"]
    assert set(found) == {"python", "platform", "processor", "processors", "threads", "cuda", "packages"}


def test_the_processor_is_named_as_linux_names_it(tmp_path):
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: Fast CPU @ 2 GHz\nprocessor\t: 1\nmodel name\t: Other\n")
    assert _processor(cpuinfo) == "Fast CPU @ 2 GHz"


def test_elsewhere_the_platform_names_it(tmp_path, monkeypatch):
    monkeypatch.setattr("platform.processor", lambda: "")
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert _processor(tmp_path / "missing") == "arm64"
