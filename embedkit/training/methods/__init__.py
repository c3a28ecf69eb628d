"""Training methods by name. Adding one is a file here and a line in this table."""

from __future__ import annotations

from typing import Any, NamedTuple

from embedkit.training.method import BatchSpec, Method, Presets
from embedkit.training.methods.bsl import BSL, BSLConfig
from embedkit.training.methods.pcl import PCL, PCLConfig
from embedkit.training.methods.sct import SCT, SCTConfig, SCTDistillation, SCTDistillationConfig

__all__ = ["METHODS", "MethodEntry"]


class MethodEntry(NamedTuple):
    """A method, the class of its settings, and where it was published."""

    config: type[Any]
    method: type[Method]
    paper: str

    @property
    def presets(self) -> Presets:
        """The paper's settings for each size."""
        return self.method.presets

    @property
    def paired(self) -> Presets:
        """What goes with a setting's value."""
        return self.method.paired

    @property
    def batch_spec(self) -> BatchSpec:
        """What it needs in a batch."""
        return self.method.batch_spec


_SCT = "Limkonchotiwat et al., TACL 2023"

METHODS: dict[str, MethodEntry] = {
    "sct": MethodEntry(SCTConfig, SCT, _SCT),
    "sct-distillation": MethodEntry(SCTDistillationConfig, SCTDistillation, _SCT),
    "bsl": MethodEntry(BSLConfig, BSL, "Zhang et al., ACL 2021"),
    "pcl": MethodEntry(PCLConfig, PCL, "Wu et al., EMNLP 2022"),
}
