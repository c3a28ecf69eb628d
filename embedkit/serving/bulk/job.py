"""A job: everything that decides what stands in the shards of an output."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embedkit.runtime.encoder import EncodeOptions, OnOverflow
from embedkit.runtime.packing import Precision

__all__ = ["EMBEDDING", "Job"]

EMBEDDING = "embedding"
"""The column that is added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What every worker has to know; it travels to them.

    Attributes:
        model: what `Encoder.load` takes, on every machine.
        fingerprint: of the model; a worker that finds another one refuses to work.
        numerics: of the model where the work began; a worker that computes otherwise logs a warning.
        output: folder or URL of the shards, on every machine.
        text_column: the column that is embedded.
        columns: the columns that rows keep.
        prompt_name: name of one of the model's prompts, put before every text.
        truncate_dim: keep only the first so many dimensions.
        precision: as of `Encoder.encode`.
        on_overflow: what to do with a text that is too long.
        threads: threads of a worker, as many as it may use if None.
        providers: ONNX Runtime execution providers, the CPU's if None.
    """

    model: str
    fingerprint: str
    numerics: str
    output: Path | str
    text_column: str
    columns: tuple[str, ...]
    prompt_name: str | None = None
    truncate_dim: int | None = None
    precision: Precision = "float32"
    on_overflow: OnOverflow = "truncate"
    threads: int | None = None
    providers: tuple[str, ...] | None = None

    @property
    def options(self) -> EncodeOptions:
        """The keywords of `Encoder.encode`."""
        return {
            "prompt_name": self.prompt_name,
            "truncate_dim": self.truncate_dim,
            "precision": self.precision,
            "on_overflow": self.on_overflow,
            "show_progress_bar": False,
        }

    @property
    def settings(self) -> dict[str, Any]:
        """What decides the content of the shards; where and how fast they are made does not."""
        return {
            "fingerprint": self.fingerprint,
            "text_column": self.text_column,
            "columns": list(self.columns),
            "prompt_name": self.prompt_name,
            "truncate_dim": self.truncate_dim,
            "precision": self.precision,
            "on_overflow": self.on_overflow,
        }
