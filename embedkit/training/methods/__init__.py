"""Training methods by name. Adding one is a file here and a line in this table."""

from __future__ import annotations

from typing import Any, NamedTuple

from embedkit.training.method import BatchSpec, Method, Presets
from embedkit.training.methods.bsl import BSL, BSLConfig
from embedkit.training.methods.ckd import CKD, CKDConfig
from embedkit.training.methods.congen import ConGen, ConGenConfig
from embedkit.training.methods.dclr import DCLR, DCLRConfig
from embedkit.training.methods.distillcse import DistillCSE, DistillCSEConfig
from embedkit.training.methods.mse import MSE, MSEConfig
from embedkit.training.methods.pcl import PCL, PCLConfig
from embedkit.training.methods.sct import SCT, SCTConfig, SCTDistillation, SCTDistillationConfig
from embedkit.training.methods.simcse import SimCSE, SimCSEConfig

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
    "simcse": MethodEntry(SimCSEConfig, SimCSE, "Gao et al., EMNLP 2021"),
    "dclr": MethodEntry(DCLRConfig, DCLR, "Zhou et al., ACL 2022"),
    "distillcse": MethodEntry(DistillCSEConfig, DistillCSE, "Xu et al., Findings of EMNLP 2023"),
    "congen": MethodEntry(ConGenConfig, ConGen, "Limkonchotiwat et al., Findings of EMNLP 2022"),
    "ckd": MethodEntry(CKDConfig, CKD, "Gao et al., arXiv 2112.05638"),
    "mse": MethodEntry(MSEConfig, MSE, "baseline of Limkonchotiwat et al., Findings of EMNLP 2022"),
}
