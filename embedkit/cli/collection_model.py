"""The model of a collection, found again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from embedkit.runtime.encoder import Encoder

__all__ = ["Remembered", "lasting_source", "load_collection_model"]


class Remembered(Protocol):
    """What a collection remembers of its model."""

    @property
    def model(self) -> str:
        """What people call it."""

    @property
    def source(self) -> str | None:
        """Where it was."""


def lasting_source(model: str) -> str:
    """Where a model can be found again from any working directory: an absolute path, or the name as it is."""
    path = Path(model).expanduser()
    return str(path.resolve()) if path.exists() else model


def load_collection_model(model: str | None, manifest: Remembered) -> Encoder:
    """Load the model asked for, or the one that the collection remembers: where it was, else by its name.

    Raises:
        ModelNotFoundError: it is in none of these places.
    """
    from embedkit.errors import ModelNotFoundError
    from embedkit.runtime.encoder import Encoder

    if model is not None:
        return Encoder.load(model)
    for source in filter(None, (manifest.source, manifest.model)):
        try:
            return Encoder.load(source)
        except ModelNotFoundError:
            continue
    raise ModelNotFoundError(
        f"the collection was built with {manifest.model}, which is no longer at {manifest.source}; "
        "say where it is with -m MODEL"
    )
