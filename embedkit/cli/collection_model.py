"""Locating the model of a collection."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from embedkit.runtime.encoder import Encoder

__all__ = ["Remembered", "lasting_source", "load_collection_model"]


class Remembered(Protocol):
    """The part of a collection's manifest that describes its model."""

    @property
    def model(self) -> str:
        """Name of the model."""

    @property
    def source(self) -> str | None:
        """Path at build time."""


def lasting_source(model: str) -> str:
    """Where a model can be found again from any working directory: an absolute path, or the name as it is."""
    path = Path(model).expanduser()
    return str(path.resolve()) if path.exists() else model


def load_collection_model(model: str | None, manifest: Remembered) -> Encoder:
    """Load the requested model, or the one recorded by the collection: by its path, else by its name.

    Raises:
        ModelNotFoundError: the model is at none of these places.
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
        "pass its new location with -m MODEL"
    )
