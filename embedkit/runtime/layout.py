"""The folder layout of sentence-transformers: the modules of a model, and their settings.

::

    modules.json                        the modules in order
    config.json, model.safetensors      the backbone, in transformers' format
    tokenizer.json, tokenizer_config.json
    sentence_bert_config.json           max_seq_length
    config_sentence_transformers.json   prompts
    1_Pooling/config.json
    2_Dense/config.json, model.safetensors     only with a head
    N_Normalize/

A folder without ``modules.json`` is a plain transformers model with a backbone only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embedkit.errors import ModelError

__all__ = ["POOLINGS", "POOLING_KEYS", "Layout", "read_bytes", "read_json", "read_layout", "whole_number"]

POOLINGS = ("mean", "cls")
POOLING_KEYS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}

_OPTIONAL = ("WordMemory", "Dense", "Normalize")  # after Transformer and Pooling, in this order


@dataclass(frozen=True, slots=True)
class Layout:
    """Settings in a model folder.

    Attributes:
        backbone: folder of the transformers model and its tokenizer.
        pooling: ``"mean"`` or ``"cls"``, None if unspecified.
        pooled_width: width of the pooled states, None if unspecified.
        includes_prompts: whether the tokens of a prompt take part in the pooling.
        max_length: maximum length of a text in tokens, None if unspecified.
        lowercase: whether texts are lowercased before tokenization.
        head: folder of the dense head, or None.
        memory: folder of the word memory, or None.
        normalize: whether embeddings are normalised to unit length.
        prompts: name -> text to prepend.
        default_prompt: name of the prompt that sentence-transformers uses by default.
    """

    backbone: Path
    pooling: str | None = None
    pooled_width: int | None = None
    includes_prompts: bool = True
    max_length: int | None = None
    lowercase: bool = False
    head: Path | None = None
    memory: Path | None = None
    normalize: bool = False
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str | None = None


def read_layout(folder: Path) -> Layout:
    """Read the layout of a model folder.

    Raises:
        ModelError: a file is missing or damaged, or the model has unsupported modules or another pooling.
    """
    if not (folder / "modules.json").is_file():
        return Layout(backbone=folder)
    modules = _read_modules(folder)
    backbone = modules["Transformer"]
    settings = read_json(backbone / "sentence_bert_config.json", optional=True)
    pooled = read_json(path := modules["Pooling"] / "config.json")
    max_length = settings.get("max_seq_length")
    prompts, default_prompt = _read_prompts(folder / "config_sentence_transformers.json")
    return Layout(
        backbone=backbone,
        pooling=_pooling(path, pooled),
        pooled_width=whole_number(path, pooled, "word_embedding_dimension", "embedding_dimension"),
        includes_prompts=pooled.get("include_prompt", True) is True,
        max_length=max_length if type(max_length) is int else None,
        lowercase=bool(settings.get("do_lower_case")),
        head=modules.get("Dense"),
        memory=modules.get("WordMemory"),
        normalize="Normalize" in modules,
        prompts=prompts,
        default_prompt=default_prompt,
    )


def read_json(path: Path, *, kind: type = dict, optional: bool = False) -> Any:
    """Read a JSON object, or a list if ``kind`` is list.

    Args:
        path: the file.
        kind: dict or list.
        optional: whether a missing file counts as empty.

    Raises:
        ModelError: the file cannot be read, or contains something else.
    """
    if optional and not path.exists():
        return kind()
    try:
        value = json.loads(read_bytes(path))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, kind):
        raise ModelError(f"{path} must contain a JSON {'list' if kind is list else 'object'}")
    return value


def read_bytes(path: Path) -> bytes:
    """Read a file of a model.

    Raises:
        ModelError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error


def whole_number(path: Path, settings: dict[str, Any], *names: str) -> int:
    """Return the first of several settings that is there.

    Raises:
        ModelError: it is not a positive integer.
    """
    value = next((settings[name] for name in names if name in settings), None)
    if type(value) is not int or value < 1:
        raise ModelError(f"{path}: {names[0]} must be a positive integer, not {value!r}")
    return value


def _read_modules(folder: Path) -> dict[str, Path]:
    """Return the folder of each kind of module, in order."""
    path = folder / "modules.json"
    modules = read_json(path, kind=list)
    try:
        found = {module["type"].rpartition(".")[2]: folder / module["path"] for module in modules}
    except (TypeError, KeyError, AttributeError) as error:
        raise ModelError(f"{path}: every module must have a type and a path") from error
    supported = ["Transformer", "Pooling", *(kind for kind in _OPTIONAL if kind in found)]
    if list(found) != supported or len(found) != len(modules):
        raise ModelError(
            f"{folder} has the modules {', '.join(found) or '(none)'}; embedkit supports Transformer, Pooling, "
            "then at most one WordMemory, one Dense and one Normalize"
        )
    return found


def _pooling(path: Path, settings: dict[str, Any]) -> str:
    modes = [key for key, on in settings.items() if key.startswith("pooling_mode_") and on is True]
    names = [POOLING_KEYS.get(mode, mode) for mode in modes] or [str(settings.get("pooling_mode"))]
    if len(names) != 1 or names[0] not in POOLINGS:
        raise ModelError(f"{path}: pooling is {', '.join(names)}; embedkit supports mean and cls")
    return names[0]


def _read_prompts(path: Path) -> tuple[dict[str, str], str | None]:
    """Return prompts by name, and the name of the default one."""
    settings = read_json(path, optional=True)
    prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(prompt, str) for prompt in prompts.values()):
        raise ModelError(f"{path}: prompts must be an object of strings")
    if default is not None and default not in prompts:
        raise ModelError(f"{path}: default_prompt_name is {default!r}, which is not among the prompts")
    return prompts, default
