"""A job: every setting that determines the contents of the shards."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from embedkit.runtime.encode_options import EncodeOptions
from embedkit.runtime.engine import OnLong
from embedkit.runtime.packing import Precision

EMBEDDING = "embedding"
"""The added column."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """The settings that every worker needs; sent to them.

    Attributes:
        model: argument of `Encoder.load`, on every machine.
        fingerprint: of the model; a worker that loads another one raises an error.
        numerics: of the model where the run started; a worker with other arithmetic logs a warning.
        output: folder or URL of the shards, on every machine.
        text_column: column of the texts.
        columns: columns to keep.
        schema: the types of these and of the texts.
        prompt_name: name of one of the model's prompts, prepended to every text.
        truncate_dim: number of leading dimensions to keep.
        precision: as for `Encoder.encode`.
        on_overflow: how to treat a text that is too long.
        threads: number of threads of a worker; None uses all that are available.
        providers: ONNX Runtime execution providers; None uses the CPU.
    """

    model: str
    fingerprint: str
    numerics: str
    output: Path | str
    text_column: str
    columns: tuple[str, ...]
    schema: pa.Schema
    prompt_name: str | None = None
    truncate_dim: int | None = None
    precision: Precision = "float32"
    on_overflow: OnLong = "truncate"
    threads: int | None = None
    providers: tuple[str, ...] | None = None

    @property
    def options(self) -> EncodeOptions:
        """Return the keyword arguments of `Encoder.encode`."""
        return {
            "prompt_name": self.prompt_name,
            "truncate_dim": self.truncate_dim,
            "precision": self.precision,
            "on_overflow": self.on_overflow,
            "show_progress_bar": False,
        }

    @property
    def settings(self) -> dict[str, Any]:
        """Return what determines the contents of the shards, which place and speed do not."""
        return {
            "fingerprint": self.fingerprint,
            "text_column": self.text_column,
            "columns": list(self.columns),
            "prompt_name": self.prompt_name,
            "truncate_dim": self.truncate_dim,
            "precision": self.precision,
            "on_overflow": self.on_overflow,
        }
