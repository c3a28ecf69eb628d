"""Location of a model: a local folder, or a model id on the hub."""

from __future__ import annotations

import os
from pathlib import Path

from huggingface_hub import snapshot_download

from embedkit.atomic import expanded
from embedkit.errors import ModelError, ModelNotFoundError, first_line
from embedkit.runtime.location import is_hub_id

_DESCRIPTIONS = ["*.json", "*.txt", "*.model", "*.spm"]
_WEIGHTS = ["*.safetensors", "*/pytorch_model.bin"]
_OLD_WEIGHTS = ["pytorch_model*.bin"]
_OTHER_FORMS = ["onnx/*", "openvino/*", "coreml/*"]


def find_folder(source: str | os.PathLike[str], *, with_code: bool = False) -> Path:
    """Return the folder of a model, downloaded first if ``source`` is a hub id.

    An existing path takes precedence. A source that looks like a path is never looked up on the network. Python
    code is downloaded ``with_code`` only.

    Raises:
        ModelNotFoundError: the folder does not exist, or the hub has no such model or cannot be reached.
        ModelError: ``source`` is a file.
    """
    path = expanded(source)
    if path.is_dir():
        return path
    if path.exists():
        raise ModelError(f"{source} is a file; expected a model folder or a hub id")
    if not isinstance(source, str) or not _may_be_on_the_hub(source):
        raise ModelNotFoundError(f"there is no model folder {source}")
    return _download(source, with_code=with_code)


def _may_be_on_the_hub(source: str) -> bool:
    """Whether ``source`` is ``org/name`` and ``org`` no existing folder, or an old id without ``org``."""
    if source.endswith((".onnx", ".safetensors", ".bin")):
        return False
    organisation, slash, _ = source.partition("/")
    return is_hub_id(source if slash else f"org/{source}") and not (slash and Path(organisation).is_dir())


def _download(hub_id: str, *, with_code: bool) -> Path:
    wanted = _DESCRIPTIONS + _WEIGHTS + ["*.py"] * with_code
    try:
        folder = Path(snapshot_download(hub_id, allow_patterns=wanted, ignore_patterns=_OTHER_FORMS))
        if not any(folder.glob("*.safetensors")):
            snapshot_download(hub_id, allow_patterns=_OLD_WEIGHTS)
    except (OSError, ValueError, RuntimeError) as error:  # the hub's own errors, and that of no home folder
        raise ModelNotFoundError(
            f"there is no folder {hub_id!r}, and no such model could be loaded from the hub: {first_line(error)}"
        ) from error
    return folder
