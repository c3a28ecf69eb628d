"""What a run records about the machine."""

from __future__ import annotations

import torch

from embedkit import __version__
from embedkit.training.run_folder import environment


def test_it_names_versions_platform_processor_and_threads():
    found = environment()
    assert (found["packages"]["embedkit"], found["packages"]["torch"]) == (__version__, torch.__version__)
    assert found["threads"] == torch.get_num_threads()
    assert found["platform"]
    assert found["processor"]
    assert set(found) == {"python", "platform", "processor", "processors", "threads", "cuda", "packages"}
