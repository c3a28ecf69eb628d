"""Loading of models: a bundle, or a folder of another library."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from embedkit.errors import InputError, ModelError
from embedkit.runtime.bundle import Bundle, read_bundle
from embedkit.runtime.folders import read_json
from embedkit.runtime.location import find_model
from embedkit.runtime.manifest import Manifest
from embedkit.runtime.sentence_transformers import (
    DEFAULT_FILE,
    FolderModel,
    read_cross_encoder_folder,
    read_folder,
)

BUNDLE_FOLDER_KEY = "embedkit_bundle"
"""Key of ``config.json`` in a folder whose ``onnx/model.onnx`` is a bundle, as ``embedkit push`` writes it."""

_LOADERS = {"encoder": "Encoder.load", "cross-encoder": "CrossEncoder.load"}

# The file that identifies a folder of another library, and the function that reads the folder.
_FOLDERS = {
    "encoder": ("modules.json", read_folder),
    "cross-encoder": ("config.json", read_cross_encoder_folder),
}


def load_model(
    source: str | os.PathLike[str], *, kind: str, file: str | None
) -> tuple[Path, Bundle | FolderModel]:
    """Find and read a model: a bundle, a folder with one bundle, or a folder of another library.

    Args:
        source: see :func:`~embedkit.runtime.location.find_model`.
        kind: the kind that a folder of another library should hold.
        file: the graph to use in a folder.

    Returns:
        Its location, for messages, and the model.

    Raises:
        ModelNotFoundError, BundleError, ModelError, InputError: the model cannot be found or read.
    """
    marker, read = _FOLDERS[kind]
    path = find_model(source, file=file)
    if not path.is_dir():
        if file is not None:
            raise InputError(f"file={file!r} chooses from a folder, and {path} is a file")
        return path, read_bundle(path)
    if file is None and _is_repository(path):
        return path, read_bundle(path / DEFAULT_FILE)
    if (path / marker).exists():
        folder = read(path, file=file)
        if Path(source).expanduser() != path:
            # Downloaded: the hub id is more informative than the folder of the cache.
            folder = replace(folder, manifest=replace(folder.manifest, name=str(source)))
        return path, folder
    bundles = sorted(path.glob("*.onnx")) if file is None else [path / file]
    if len(bundles) != 1:
        found = f"{len(bundles)} .onnx files, of which one has to be chosen" if bundles else "neither"
        raise ModelError(f"{path} should hold one bundle or a {marker}; it has {found}")
    return path, read_bundle(bundles[0])


def _is_repository(folder: Path) -> bool:
    """Return whether a folder declares that its graph is a bundle."""
    try:
        return BUNDLE_FOLDER_KEY in read_json(folder / "config.json")
    except ModelError:  # the reader of such folders reports it
        return False


def check_kind(manifest: Manifest, wanted: str) -> None:
    """Reject a model of another kind.

    Raises:
        ModelError: the kind differs; names the class that loads it.
    """
    if manifest.kind != wanted:
        raise ModelError(f"{manifest.name} is a model of kind {manifest.kind!r}; use {_LOADERS[manifest.kind]}")
