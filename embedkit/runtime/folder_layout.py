"""The reader of model folders: where each version of sentence-transformers and transformers writes each setting.

::

    modules.json                        the modules in order
    config.json, model.safetensors      the backbone, in transformers' format
    tokenizer.json, tokenizer_config.json      the latter's settings apply, and may set the maximum length
    sentence_bert_config.json           max_seq_length, do_lower_case (before sentence-transformers 6),
                                        modality_config; older folders name it after another architecture
    config_sentence_transformers.json   prompts, truncate_dim, similarity_fn_name, activation_fn
    1_Pooling/config.json
    2_Dense/config.json, model.safetensors     any number of dense layers
    N_Normalize/

A static model, a table of word vectors that are averaged, has no backbone and no pooling::

    0_StaticEmbedding/model.safetensors, tokenizer.json     as sentence-transformers writes it
    model.safetensors, tokenizer.json, config.json          as model2vec writes it, with or without modules.json

A folder without ``modules.json`` is a plain transformers model, a backbone only or a classifier, unless model2vec
wrote it. Runtime, export and training read folders here, so they agree. A setting that is not known is refused: it
may change results.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from embedkit.atomic import read_regular
from embedkit.errors import ModelError

# In the order in which sentence-transformers concatenates those that are switched on one by one.
POOLING_KEYS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
POOLINGS = tuple(POOLING_KEYS.values())

_CLASSIFIER = "ForSequenceClassification"
_STATIC = "StaticEmbedding"
_CONFIG = "config_sentence_transformers.json"
_TASKS = {"feature-extraction": "encoder", "sequence-classification": "cross-encoder"}
_UNLIMITED = 1_000_000  # tokenizers without a limit write 1e30
_ARCHITECTURES = ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
_OUTPUTS = {"encoder": "last_hidden_state", "cross-encoder": "logits"}
_NAMESPACES = ("sentence_transformers.", "embedkit.")  # of modules whose code is known

# Settings that change no embedding of a text, or that are read below.
_KNOWN_TRANSFORMER = {
    "max_seq_length",
    "do_lower_case",
    "transformer_task",
    "modality_config",
    "module_output_name",
    "unpad_inputs",
}
_KNOWN_CONFIG = {
    "__version__",
    "model_type",
    "prompts",
    "default_prompt_name",
    "similarity_fn_name",
    "truncate_dim",
    "activation_fn",
}
_KNOWN_POOLING = {
    *POOLING_KEYS,
    "pooling_mode",
    "word_embedding_dimension",
    "embedding_dimension",
    "include_prompt",
}
_KNOWN_NORMALIZE = {"module_input_name", "module_output_name"}
_KNOWN_MODEL2VEC = {
    "normalize",
    "max_length",
    "model_type",
    "architectures",
    "tokenizer_name",
    "apply_pca",
    "apply_zipf",
    "sif_coefficient",
    "hidden_dim",
    "seq_length",
    "pooling",  # of the network that the table was distilled from
    "embedding_dtype",
    "vocabulary_quantization",
    "head_config",
}
_MODEL2VEC_LENGTH = 512  # where config.json has no max_length

StaticForm = Literal["sentence-transformers", "model2vec"]


@dataclass(frozen=True, slots=True)
class Layout:
    """Settings in a model folder.

    Attributes:
        backbone: folder of the transformers model and its tokenizer.
        kind: ``"encoder"`` or ``"cross-encoder"``.
        architecture: transformers' class of the network, or empty.
        pooling: one of ``POOLINGS``, or several joined by ``+``, None if unspecified.
        pooled_width: width of a token's state, None if unspecified.
        max_length: maximum length of a text in tokens, None if unspecified.
        lowercase: whether texts are lowercased before tokenization.
        heads: folders of the dense layers, in order.
        memory: folder of the word memory, or None.
        normalize: whether embeddings are normalised to unit length.
        prompts: name -> text to prepend, possibly empty.
        default_prompt: name of the prompt that sentence-transformers uses by default.
        truncate_dim: number of leading dimensions to keep, None for all.
        similarity: the similarity that embeddings are made for: ``"cosine"``, ``"dot"`` or another.
        activation: class of the activation after a cross-encoder's logit, or None.
        static: the library whose form a table of word vectors has, or None for a network. model2vec leaves unknown
            words out of the mean, sentence-transformers does not.
    """

    backbone: Path
    kind: str = "encoder"
    architecture: str = ""
    pooling: str | None = None
    pooled_width: int | None = None
    max_length: int | None = None
    lowercase: bool = False
    heads: tuple[Path, ...] = ()
    memory: Path | None = None
    normalize: bool = False
    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    truncate_dim: int | None = None
    similarity: str = "cosine"
    activation: str | None = None
    static: StaticForm | None = None


def read_layout(folder: Path) -> Layout:
    """Read the layout of a model folder.

    Raises:
        ModelError: a file is missing or damaged, or the model has modules or settings that are not supported.
    """
    settings = read_json(folder / _CONFIG, optional=True)
    _refuse_unknown(folder / _CONFIG, settings, _KNOWN_CONFIG)
    modules = _read_modules(folder)
    backbone = modules[0][1] if modules else folder
    network = read_json(backbone / "config.json", optional=True)
    if (modules and modules[0][0] == _STATIC) or (not modules and network.get("model_type") == "model2vec"):
        return _read_static(folder, settings, modules or [(_STATIC, folder)])
    adapter = backbone / "adapter_config.json"
    if adapter.exists():  # which transformers ignores without the package peft
        raise ModelError(
            f"{adapter}: embedkit does not support adapters; merge them into the weights of the model"
        )
    if read_json(backbone / "tokenizer_config.json", optional=True).get("split_special_tokens"):
        raise ModelError(f"{backbone / 'tokenizer_config.json'}: embedkit does not support split_special_tokens")
    transformer = read_transformer(backbone)
    architecture = str((network.get("architectures") or [""])[0])
    kind = _kind(folder, settings, transformer, architecture, is_plain=not modules)
    _check_modalities(folder, transformer, _OUTPUTS[kind])
    _check_modules(folder, kind, [name for name, _ in modules])
    prompts, default_prompt = _read_prompts(folder / _CONFIG, settings)
    if kind == "cross-encoder" and prompts.get(default_prompt or ""):
        raise ModelError(
            f"{folder / _CONFIG}: embedkit puts no prompt before a cross-encoder's texts (default_prompt_name)"
        )
    return Layout(
        backbone=backbone,
        kind=kind,
        architecture=architecture,
        max_length=_max_length(backbone, transformer, network),
        lowercase=bool(transformer.get("do_lower_case")),
        heads=tuple(path for name, path in modules if name == "Dense"),
        memory=next((path for name, path in modules if name == "WordMemory"), None),
        normalize=any(name == "Normalize" and _normalizes(path) for name, path in modules),
        prompts=prompts,
        default_prompt=default_prompt,
        truncate_dim=_truncate_dim(folder / _CONFIG, settings),
        similarity=str(settings.get("similarity_fn_name") or "cosine"),
        activation=stored_activation(settings, network),
        **_read_pooling(modules, prompts),
    )


def check_similarity(source: str | Path, layout: Layout) -> None:
    """Check that the embeddings of a model may be compared by their cosine.

    Raises:
        ModelError: they have any length, and are made for dot products or distances.
    """
    unit = ("cosine", "dot", "euclidean") if layout.normalize else ("cosine",)
    if layout.similarity not in unit:
        raise ModelError(
            f"{source} is made for the similarity {layout.similarity!r} of embeddings without unit length "
            "(similarity_fn_name), but embedkit compares unit rows by their cosine"
        )


def read_transformer(backbone: Path) -> dict[str, Any]:
    """Return the settings of the module ``Transformer``, from the first file of a known name that has any.

    Raises:
        ModelError: the file is damaged, or has a setting that is not supported.
    """
    for name in _ARCHITECTURES:
        path = backbone / f"sentence_{name}_config.json"
        settings: dict[str, Any] = read_json(path, optional=True)
        if settings:
            _refuse_unknown(path, settings, _KNOWN_TRANSFORMER)
            return settings
    return {}


def _read_static(folder: Path, settings: dict[str, Any], modules: list[tuple[str, Path]]) -> Layout:
    kinds = [name for name, _ in modules]
    rest = kinds[1:-1] if kinds[-1] == "Normalize" else kinds[1:]
    if not set(rest) <= {"Dense"}:
        raise ModelError(
            f"{folder} has the modules {', '.join(kinds)}; embedkit supports {_STATIC}, then any number of Dense "
            "and at most one Normalize"
        )
    place = modules[0][1]
    described = place / "config.json"
    is_model2vec = described.is_file() and "embeddings" in _tensor_names(place / "model.safetensors")
    own = read_json(described) if is_model2vec else {}
    _refuse_unknown(described, own, _KNOWN_MODEL2VEC)
    truncation = read_json(place / "tokenizer.json").get("truncation") or {}
    length = own.get("max_length", _MODEL2VEC_LENGTH) if is_model2vec else truncation.get("max_length")
    if length is not None and (type(length) is not int or length < 1):
        raise ModelError(f"{described}: max_length must be a positive integer or null, not {length!r}")
    prompts, default_prompt = _read_prompts(folder / _CONFIG, settings)
    return Layout(
        backbone=place,
        pooling="mean",
        max_length=length,
        heads=tuple(path for name, path in modules if name == "Dense"),
        normalize="Normalize" in kinds or own.get("normalize") is True,
        prompts=prompts,
        default_prompt=default_prompt,
        truncate_dim=_truncate_dim(folder / _CONFIG, settings),
        similarity=str(settings.get("similarity_fn_name") or "cosine"),
        static="model2vec" if is_model2vec else "sentence-transformers",
    )


def _tensor_names(path: Path) -> set[str]:
    """Return the names of the tensors in a file of safetensors, which begins with them in JSON, if it exists."""
    if not path.is_file():
        return set()
    check_fetched(path.parent)
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            names = json.loads(file.read(min(size, path.stat().st_size)))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(f"{path} is not a file of safetensors: {error}") from error
    return set(names) if isinstance(names, dict) else set()


def _truncate_dim(path: Path, settings: dict[str, Any]) -> int | None:
    return None if settings.get("truncate_dim") is None else whole_number(path, settings, "truncate_dim")


def pooling_modes(pooling: str) -> list[str]:
    """Split a pooling into its modes, whose results are concatenated.

    Raises:
        ModelError: a mode is not known.
    """
    modes = pooling.split("+")
    if not set(modes) <= set(POOLINGS):
        raise ModelError(f"pooling must be one of {', '.join(POOLINGS)}, or several joined by +, not {pooling!r}")
    return modes


def read_json(path: Path, *, kind: type = dict, optional: bool = False) -> Any:
    """Read a JSON object, or a list if ``kind`` is list; a missing file that is optional counts as empty.

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


LFS_POINTER: Final = b"version https://git-lfs."
"""The beginning of the text that Git leaves in place of a large file that was not fetched."""

LFS_ADVICE: Final = "this is a pointer of Git LFS, not the file itself; fetch it with `git lfs pull`"

_LONGEST_POINTER = 1024  # bytes, by the specification


def read_bytes(path: Path) -> bytes:
    """Read a file of a model.

    Raises:
        ModelError: it cannot be read, or is a pointer of Git LFS.
    """
    try:
        content = read_regular(path)
    except OSError as error:
        raise ModelError(f"cannot read {path}: {error.strerror or error}") from error
    if content.startswith(LFS_POINTER):
        raise ModelError(f"{path}: {LFS_ADVICE}")
    return content


def check_fetched(folder: Path) -> None:
    """Check that the weights of a folder are here.

    Raises:
        ModelError: a file of theirs cannot be read, or is a pointer of Git LFS.
    """
    for path in sorted((*folder.glob("*.safetensors"), *folder.glob("*.bin"))):
        if path.stat().st_size < _LONGEST_POINTER:
            read_bytes(path)


def whole_number(path: Path, settings: dict[str, Any], *names: str) -> int:
    """Return the first of several settings that is present.

    Raises:
        ModelError: it is not a positive integer.
    """
    value = next((settings[name] for name in names if name in settings), None)
    if type(value) is not int or value < 1:
        raise ModelError(f"{path}: {names[0]} must be a positive integer, not {value!r}")
    return value


def _refuse_unknown(path: Path, settings: Mapping[str, Any], known: Iterable[str]) -> None:
    """Refuse a setting that is not known and that is in effect."""
    known = set(known)
    for name, value in settings.items():
        if name not in known and value not in (None, False, {}, [], ""):
            raise ModelError(f"{path}: embedkit does not support the setting {name} ({json.dumps(value)[:60]})")


def _read_modules(folder: Path) -> list[tuple[str, Path]]:
    """Return kind and folder of each module, in order, without those that do nothing at inference."""
    path = folder / "modules.json"
    if not path.is_file():
        return []
    modules = read_json(path, kind=list)
    try:
        kinds = [(module["type"].rpartition(".")[2], folder / module["path"]) for module in modules]
        others = [module["type"] for module in modules if not module["type"].startswith(_NAMESPACES)]
    except (TypeError, KeyError, AttributeError) as error:
        raise ModelError(f"{path}: every module must have a type and a path") from error
    if others:
        raise ModelError(f"{path} has the module {others[0]}, which embedkit does not support")
    if not kinds:
        raise ModelError(f"{path} has no modules")
    return [(name, place) for name, place in kinds if name != "Dropout"]


def _kind(
    folder: Path, settings: Mapping[str, Any], transformer: Mapping[str, Any], architecture: str, *, is_plain: bool
) -> str:
    if is_plain:
        return "cross-encoder" if architecture.endswith(_CLASSIFIER) else "encoder"
    if settings.get("model_type") == "CrossEncoder":
        return "cross-encoder"
    if settings.get("model_type") not in (None, "SentenceTransformer"):
        raise ModelError(f"{folder} is a {settings['model_type']}, which embedkit does not support")
    task = transformer.get("transformer_task", "feature-extraction")
    if task not in _TASKS:
        raise ModelError(f"{folder}: embedkit does not support the transformer_task {task!r}")
    return _TASKS[task]


def _check_modalities(folder: Path, transformer: Mapping[str, Any], output: str) -> None:
    """Refuse texts that reach the network by another way than its tokenizer and its ``forward``."""
    modalities = transformer.get("modality_config") or {}
    if "message" in modalities:
        raise ModelError(
            f"{folder} puts texts into a chat template (modality_config has 'message'), which embedkit does not "
            "support"
        )
    if modalities and modalities.get("text") != {"method": "forward", "method_output_name": output}:
        raise ModelError(
            f"{folder} gives for texts {json.dumps(modalities.get('text'))} (modality_config), and embedkit "
            f"supports only the {output} of forward"
        )


def _check_modules(folder: Path, kind: str, kinds: list[str]) -> None:
    if not kinds:  # a plain transformers model
        return
    if kind == "cross-encoder":
        if kinds != ["Transformer"]:
            raise ModelError(
                f"{folder} is a cross-encoder with the modules {', '.join(kinds)}; embedkit supports classifiers "
                "with a Transformer only, and no rerankers made of causal language models"
            )
        return
    rest = list(kinds)
    for wanted in ("Transformer", "Pooling"):
        if rest[:1] != [wanted]:
            break
        rest.pop(0)
    else:
        rest = rest[1:] if rest[:1] == ["WordMemory"] else rest
        rest = rest[:-1] if rest[-1:] == ["Normalize"] else rest
        if set(rest) <= {"Dense"}:
            return
    raise ModelError(
        f"{folder} has the modules {', '.join(kinds)}; embedkit supports Transformer, Pooling, then at most one "
        "WordMemory, any number of Dense and at most one Normalize"
    )


def _read_pooling(modules: list[tuple[str, Path]], prompts: Mapping[str, str]) -> dict[str, Any]:
    """Return the fields of the layout that the module of the pooling sets."""
    place = next((path for name, path in modules if name == "Pooling"), None)
    if place is None:
        return {}
    settings = read_json(path := place / "config.json")
    _refuse_unknown(path, settings, _KNOWN_POOLING)
    if not settings.get("include_prompt", True) and any(prompts.values()):  # without a prompt it has no effect
        raise ModelError(f"{path}: include_prompt is false, but embedkit includes prompts in the pooling")
    return {
        "pooling": _pooling(path, settings),
        "pooled_width": whole_number(path, settings, "word_embedding_dimension", "embedding_dimension"),
    }


def _pooling(path: Path, settings: dict[str, Any]) -> str:
    modes = settings.get("pooling_mode")
    if modes is None:
        modes = [mode for key, mode in POOLING_KEYS.items() if settings.get(key)]
        modes = modes or ["mean"]  # as sentence-transformers reads it
    names = [modes] if isinstance(modes, str) else modes
    if not isinstance(names, list) or not names or not all(name in POOLINGS for name in names):
        raise ModelError(f"{path}: pooling is {modes!r}; embedkit supports {', '.join(POOLINGS)}")
    return "+".join(names)


def _normalizes(path: Path) -> bool:
    settings = read_json(path / "config.json", optional=True)
    _refuse_unknown(path / "config.json", settings, _KNOWN_NORMALIZE)
    for name, value in settings.items():
        if value not in (None, "sentence_embedding"):
            raise ModelError(f"{path / 'config.json'}: embedkit does not support the setting {name} ({value!r})")
    return True


def _max_length(backbone: Path, transformer: Mapping[str, Any], network: Mapping[str, Any]) -> int | None:
    """Return the length that sentence-transformers uses.

    Up to version 5 it writes ``max_seq_length``, which takes precedence; since version 6 only the tokenizer's
    ``model_max_length``, which is at most the number of the network's positions.
    """
    length = transformer.get("max_seq_length")
    if type(length) is int:
        return length
    tokenizer = read_json(backbone / "tokenizer_config.json", optional=True)
    lengths = [
        tokenizer.get("model_max_length", tokenizer.get("max_len")),  # transformers renamed it
        network.get("max_position_embeddings"),
    ]
    return min((length for length in lengths if type(length) is int and 0 < length < _UNLIMITED), default=None)


def _read_prompts(path: Path, settings: Mapping[str, Any]) -> tuple[dict[str, str], str | None]:
    """Return prompts by name, and the name of the default one."""
    prompts, default = settings.get("prompts") or {}, settings.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(text, str | None) for text in prompts.values()):
        raise ModelError(f"{path}: prompts must be an object of strings")
    if default is not None and default not in prompts:
        raise ModelError(f"{path}: default_prompt_name is {default!r}, which is not among the prompts")
    return {name: text or "" for name, text in prompts.items()}, default


def torch_class(name: str) -> str:
    """Return the last part of the name of a class of torch; sentence-transformers loads no others."""
    return name.rpartition(".")[2] if name.startswith("torch.") else name


def stored_activation(settings: Mapping[str, Any], network: Mapping[str, Any]) -> str | None:
    """Return the class of a cross-encoder's activation, as version 6, versions 4 and 5, or earlier ones write it.

    ``settings`` are those of ``config_sentence_transformers.json``, ``network`` those of ``config.json``.
    """
    nested = network.get("sentence_transformers")
    names = [
        settings.get("activation_fn"),
        nested.get("activation_fn") if isinstance(nested, dict) else None,
        network.get("sbert_ce_default_activation_function"),
    ]
    return next((str(name) for name in names if name), None)
