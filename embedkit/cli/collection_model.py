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
    """Load the requested model, or the one recorded by the collection: by its path, else by its bundled name.

    A collection may come from somebody else, so nothing that it records is looked for on a network.

    Raises:
        ModelNotFoundError: the model is at none of these places.
    """
    from embedkit.errors import ModelNotFoundError
    from embedkit.runtime.encoder import Encoder
    from embedkit.runtime.location import bundled_names

    if model is not None:
        return Encoder.load(model)
    for source in filter(None, (manifest.source, manifest.model)):
        if Path(source).exists() or source in bundled_names():
            return Encoder.load(source)
    raise ModelNotFoundError(
        f"the collection was built with {manifest.model}, from {manifest.source}, which is not on this machine; "
        "pass its location or its name with -m MODEL"
    )
