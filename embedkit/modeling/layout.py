"""The folder layout of sentence-transformers: the modules of a model, and their settings.

::

    modules.json                        the modules in order
    config.json, model.safetensors      the backbone, in transformers' format
    tokenizer.json, tokenizer_config.json
    sentence_bert_config.json           max_seq_length
    config_sentence_transformers.json   prompts
    1_Pooling/config.json
    2_Dense/config.json, model.safetensors     only with a head (its weights are not written here)
    N_Normalize/

A folder without ``modules.json`` is a plain transformers model with a backbone only.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from embedkit.errors import ModelError

__all__ = ["POOLINGS", "Layout", "read_layout", "weights_bytes", "write_layout"]

POOLINGS = ("mean", "cls")

_POOLING_KEYS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")  # the first format found is loaded
_OPTIONAL = ("WordMemory", "Dense", "Normalize")  # after Transformer and Pooling, in this order
_MODULES = {"WordMemory": "embedkit.modeling.memory.WordMemory"}
_ACTIVATIONS = {"Tanh": "tanh", "Identity": "linear"}


@dataclass(frozen=True, slots=True)
class Layout:
    """Settings in a model folder.

    Attributes:
        backbone: folder of the transformers model and its tokenizer.
        pooling: ``"mean"`` or ``"cls"``, None if unspecified.
        max_length: maximum length of a text in tokens, None if unspecified.
        lowercase: whether texts are lowercased before tokenization.
        head: folder of the dense head, or None.
        head_activation: ``"tanh"`` or ``"linear"``.
        memory: folder of the word memory, or None.
        prompts: name -> text to prepend.
        default_prompt: name of the prompt that sentence-transformers uses by default.
    """

    backbone: Path
    pooling: str | None = None
    max_length: int | None = None
    lowercase: bool = False
    head: Path | None = None
    head_activation: str = "tanh"
    memory: Path | None = None
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str | None = None


def read_layout(folder: Path) -> Layout:
    """Read the layout of a model folder.

    Raises:
        ModelError: a file is damaged, or the model has unsupported modules or settings.
    """
    if not (folder / "modules.json").is_file():
        return Layout(backbone=folder)
    modules = _read_modules(folder)
    backbone = modules["Transformer"]
    settings = _read_json(backbone / "sentence_bert_config.json", missing={})
    described = _read_json(folder / "config_sentence_transformers.json", missing={})
    prompts = described.get("prompts") or {}
    return Layout(
        backbone=backbone,
        pooling=_read_pooling(modules["Pooling"], prompts),
        max_length=settings.get("max_seq_length"),
        lowercase=bool(settings.get("do_lower_case")),
        head=modules.get("Dense"),
        head_activation=_read_head(modules["Dense"]) if "Dense" in modules else "tanh",
        memory=modules.get("WordMemory"),
        prompts={name: text for name, text in prompts.items() if text},
        default_prompt=described.get("default_prompt_name"),
    )


def weights_bytes(folder: Path) -> int:
    """Return the size in bytes of a model's weights, including its head, and its tokenizer."""
    weights = next((found for form in _WEIGHTS if (found := list(folder.rglob(form)))), [])
    return sum(path.stat().st_size for path in [*weights, *folder.glob("tokenizer.json")])


def write_layout(
    folder: Path,
    *,
    hidden: int,
    pooling: str,
    max_length: int,
    memory: int | None,
    head: tuple[int, str] | None,
    prompts: dict[str, str],
    default_prompt: str | None = None,
) -> Layout:
    """Write the layout's JSON files into a folder that contains a transformers model.

    A word memory is a module of embedkit's own; sentence-transformers refuses to load it rather than ignoring it.

    Args:
        folder: the destination.
        hidden: H, width of the backbone.
        pooling: ``"mean"`` or ``"cls"``.
        max_length: maximum length of a text in tokens.
        memory: M, width of the word memory, or None.
        head: D and activation of the dense head, or None.
        prompts: name -> text to prepend.
        default_prompt: name of the prompt used by default.

    Returns:
        the layout, whose folders of head and memory do not contain weights yet.
    """
    pooled = {"word_embedding_dimension": hidden}
    pooled |= {key: name == pooling for key, name in _POOLING_KEYS.items()}
    pooled |= {"pooling_mode_max_tokens": False, "pooling_mode_mean_sqrt_len_tokens": False}
    stack: list[tuple[str, dict[str, Any] | None]] = [("Transformer", None), ("Pooling", pooled)]
    stack += [("WordMemory", {"width": memory})] if memory else []
    stack += [("Dense", _describe_head(hidden + (memory or 0), *head))] if head else []
    stack += [("Normalize", None)]

    modules = []
    for index, (kind, settings) in enumerate(stack):
        path = f"{index}_{kind}" if index else ""
        (folder / path).mkdir(exist_ok=True)
        if settings is not None:
            _write_json(folder / path / "config.json", settings)
        module_type = _MODULES.get(kind, f"sentence_transformers.models.{kind}")
        modules.append({"idx": index, "name": str(index), "path": path, "type": module_type})
    _write_json(folder / "modules.json", modules)
    _write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False})
    _write_json(
        folder / "config_sentence_transformers.json",
        {"prompts": prompts, "default_prompt_name": default_prompt, "similarity_fn_name": "cosine"},
    )
    return read_layout(folder)


def _describe_head(width: int, dimension: int, activation: str) -> dict[str, Any]:
    name = next(name for name, known in _ACTIVATIONS.items() if known == activation)
    module = "torch.nn.modules.activation.Tanh" if name == "Tanh" else "torch.nn.modules.linear.Identity"
    return {"in_features": width, "out_features": dimension, "bias": True, "activation_function": module}


def _read_modules(folder: Path) -> dict[str, Path]:
    """Return the folder of each kind of module, in order."""
    modules = _read_json(folder / "modules.json")
    try:
        found = {module["type"].rpartition(".")[2]: folder / module["path"] for module in modules}
    except (TypeError, KeyError, AttributeError) as error:
        raise ModelError(f"{folder / 'modules.json'} is not a list of modules with type and path") from error
    supported = ["Transformer", "Pooling", *(kind for kind in _OPTIONAL if kind in found)]
    if list(found) != supported or len(found) != len(modules):
        raise ModelError(
            f"{folder} has the modules {', '.join(found)}; embedkit supports Transformer, Pooling, "
            "then at most one WordMemory, one Dense and one Normalize"
        )
    return found


def _read_pooling(folder: Path, prompts: dict[str, str]) -> str:
    settings = _read_json(folder / "config.json")
    mode = settings.get("pooling_mode")
    if mode is None:
        active = [key for key, on in settings.items() if key.startswith("pooling_mode_") and on]
        mode = _POOLING_KEYS.get(active[0]) if len(active) == 1 else active
    if mode not in POOLINGS:
        raise ModelError(
            f"{folder / 'config.json'} uses an unsupported pooling (only mean and cls are supported): {settings}"
        )
    if any(prompts.values()) and not settings.get("include_prompt", True):
        raise ModelError(f"{folder} excludes prompts from pooling, which embedkit does not support")
    return str(mode)


def _read_head(folder: Path) -> str:
    """Return the activation of a dense head."""
    settings = _read_json(folder / "config.json")
    activation = _ACTIVATIONS.get(str(settings.get("activation_function", "")).rpartition(".")[2])
    if activation is None or not settings.get("bias", True) or settings.get("use_residual"):
        raise ModelError(f"{folder} is not a dense layer with bias and optional tanh: {settings}")
    return activation


def _read_json(path: Path, *, missing: Any = None) -> Any:
    if missing is not None and not path.is_file():
        return missing
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read as JSON: {error}") from error


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
