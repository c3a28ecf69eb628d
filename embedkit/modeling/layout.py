"""Write the folder layout of sentence-transformers, as :mod:`embedkit.runtime.folder_layout` describes it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

from embedkit.errors import ModelError
from embedkit.runtime.folder_layout import POOLING_KEYS, Layout, pooling_modes, read_json, read_layout, torch_class

Activation = Literal["tanh", "linear", "relu", "gelu", "sigmoid", "silu"]
"""The function after the product of a dense head; ``"linear"`` is none."""

_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")  # the first format found is loaded
_MODULES = {"WordMemory": "embedkit.modeling.pooling.WordMemory"}
_ACTIVATIONS: dict[str, Activation] = {
    "Tanh": "tanh",
    "Identity": "linear",
    "ReLU": "relu",
    "GELU": "gelu",
    "Sigmoid": "sigmoid",
    "SiLU": "silu",
}
_DENSE_SETTINGS = {
    "in_features",
    "out_features",
    "bias",
    "activation_function",
    "module_input_name",
    "module_output_name",
    "use_residual",
}


def weights_bytes(folder: Path) -> int:
    """Return the size in bytes of a model's weights, including its head, and its tokenizer."""
    weights = next((files for form in _WEIGHTS if (files := list(folder.rglob(form)))), [])
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
    The ``memory`` is M, its width; the ``head`` D and its activation. The folders of the returned layout's head
    and memory do not contain weights yet.
    """
    pooled: dict[str, Any] = {"word_embedding_dimension": hidden}
    switches = {key: name in pooling_modes(pooling) for key, name in POOLING_KEYS.items()}
    in_order = "+".join(POOLING_KEYS[key] for key, is_on in switches.items() if is_on) == pooling
    pooled |= switches if in_order else {"pooling_mode": pooling_modes(pooling)}  # since sentence-transformers 6
    stack: list[tuple[str, dict[str, Any] | None]] = [("Transformer", None), ("Pooling", pooled)]
    stack += [("WordMemory", {"width": memory})] if memory else []
    width = hidden * len(pooling_modes(pooling)) + (memory or 0)
    stack += [("Dense", _describe_head(width, *head))] if head else []
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


def read_activation(head: Path) -> Activation:
    """Return the activation of a dense head from its folder.

    Raises:
        ModelError: it is another kind of dense layer.
    """
    settings = read_json(head / "config.json")
    activation = _ACTIVATIONS.get(torch_class(str(settings.get("activation_function", ""))))
    names = {settings.get(name) for name in ("module_input_name", "module_output_name")}
    is_known = settings.keys() <= _DENSE_SETTINGS and names <= {None, "sentence_embedding"}
    if activation is None or settings.get("use_residual") or not is_known:
        raise ModelError(
            f"{head} is not a plain dense layer with one of the activations {', '.join(_ACTIVATIONS)}: {settings}"
        )
    return activation


def _describe_head(width: int, dimension: int, activation: str) -> dict[str, Any]:
    name = next(name for name, known in _ACTIVATIONS.items() if known == activation)
    module = f"torch.nn.modules.{'linear' if name == 'Identity' else 'activation'}.{name}"
    return {"in_features": width, "out_features": dimension, "bias": True, "activation_function": module}


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
