"""Loading of models: a bundle, or a folder of another library."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from embedkit.errors import InputError, ModelError
from embedkit.runtime.bundle import Bundle, Manifest, read_bundle
from embedkit.runtime.location import find_model
from embedkit.runtime.sentence_transformers import FolderModel

__all__ = ["Origin", "Reloadable", "check_kind", "load_model"]

_LOADERS = {"encoder": "Encoder.load", "cross-encoder": "CrossEncoder.load"}


class Origin(NamedTuple):
    """Source of a model, from which other processes can load it again.

    Attributes:
        source: path of the file or folder.
        options: keywords of ``load``.
    """

    source: str
    options: Mapping[str, Any]


class Reloadable(ABC):
    """An immutable model: a copy is the model itself, and a pickle stores its source.

    Unpickling loads the model again and raises a :class:`ModelError` if it has changed.
    """

    _origin: Origin | None = None

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Hex SHA-256 of everything that determines the results."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if self._origin is None:
            raise ModelError(f"only a model made by {type(self).__name__}.load can be pickled: it is loaded again")
        return _reload, (type(self), self._origin, self.fingerprint)


def _reload(kind: Any, origin: Origin, fingerprint: str) -> Any:
    model = kind.load(origin.source, **origin.options)
    if model.fingerprint != fingerprint:
        raise ModelError(f"{origin.source} is another model than the one that was pickled")
    return model


def load_model(
    source: str | os.PathLike[str], *, file: str | None, marker: str, read_folder: Callable[..., FolderModel]
) -> tuple[Path, Bundle | FolderModel]:
    """Find and read a model: a bundle, a folder with one bundle, or a folder that holds ``marker``.

    Args:
        source: see :func:`~embedkit.runtime.location.find_model`.
        file: the graph to use in a folder.
        marker: name of the file that identifies a folder of another library.
        read_folder: function that reads such a folder; called with the folder and ``file``.

    Returns:
        Its location, for messages, and the model.

    Raises:
        ModelNotFoundError, BundleError, ModelError, InputError: the model cannot be found or read.
    """
    path = find_model(source, file=file)
    if not path.is_dir():
        if file is not None:
            raise InputError(f"file={file!r} chooses from a folder, and {path} is a file")
        return path, read_bundle(path)
    if (path / marker).exists():
        folder = read_folder(path, file=file)
        if Path(source).expanduser() != path:
            # Downloaded: the hub id is more informative than the folder of the cache.
            folder = replace(folder, manifest=replace(folder.manifest, name=str(source)))
        return path, folder
    bundles = sorted(path.glob("*.onnx")) if file is None else [path / file]
    if len(bundles) != 1:
        found = f"{len(bundles)} .onnx files, of which one has to be chosen" if bundles else "neither"
        raise ModelError(f"{path} should hold one bundle or a {marker}; it has {found}")
    return path, read_bundle(bundles[0])


def check_kind(manifest: Manifest, wanted: str) -> None:
    """Reject a model of another kind.

    Raises:
        ModelError: the kind differs; names the class that loads it.
    """
    if manifest.kind != wanted:
        raise ModelError(f"{manifest.name} is a model of kind {manifest.kind!r}; use {_LOADERS[manifest.kind]}")
