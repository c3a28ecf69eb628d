"""Training methods by name. To add one, add a module here and a line to the table below."""

from __future__ import annotations

from embedkit.training.method import Method
from embedkit.training.methods.bsl import BSL
from embedkit.training.methods.ckd import CKD
from embedkit.training.methods.congen import MSE, ConGen
from embedkit.training.methods.distillcse import DistillCSE
from embedkit.training.methods.pcl import PCL
from embedkit.training.methods.sct import SCT, SCTDistillation
from embedkit.training.methods.simcse import SimCSE

__all__ = ["METHODS"]

METHODS: dict[str, type[Method]] = {
    "sct": SCT,
    "sct-distillation": SCTDistillation,
    "bsl": BSL,
    "pcl": PCL,
    "simcse": SimCSE,
    "distillcse": DistillCSE,
    "congen": ConGen,
    "ckd": CKD,
    "mse": MSE,
}
