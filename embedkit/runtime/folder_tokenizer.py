"""The tokenizer of a model folder: ``tokenizer.json`` with transformers' settings in other files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from embedkit.errors import ModelError
from embedkit.runtime.folder_layout import Layout, StaticForm, read_bytes, read_json

# Settings of tokenizer_config.json that classes of transformers apply: name in tokenizer.json, and default.
_CASING: dict[str, tuple[str, bool | None]] = {
    "do_lower_case": ("lowercase", True),
    "strip_accents": ("strip_accents", None),
    "tokenize_chinese_chars": ("handle_chinese_chars", True),
}
_SPACING: dict[str, tuple[str, bool | None]] = {"add_prefix_space": ("add_prefix_space", False)}
_BERT_TOKENIZERS = (
    *("bert", "distilbert", "electra", "mpnet", "mobilebert", "convbert", "squeezebert", "layoutlm", "lxmert"),
    *("dprquestionencoder", "dprcontextencoder"),
)
_ROBERTA_TOKENIZERS = ("roberta", "longformer")
# Model, normaliser and pre-tokenizer of families that transformers 5 builds from their vocabulary alone.
_REBUILT: dict[str, tuple[str | None, ...]] = {
    **dict.fromkeys(_BERT_TOKENIZERS, ("WordPiece", "BertNormalizer", "BertPreTokenizer")),
    **dict.fromkeys(_ROBERTA_TOKENIZERS, ("BPE", None, "ByteLevel")),
}
_DIFFER = "versions 4 and 5 of transformers differ here; make a bundle with `embedkit export`, which follows yours"
_GENERIC_TOKENIZERS = (None, "PreTrainedTokenizerFast", "TokenizersBackend")


def read_tokenizer(layout: Layout) -> str:
    """Return ``tokenizer.json`` with the settings of ``tokenizer_config.json``, which transformers applies to it.

    Raises:
        ModelError: a file is missing or damaged, or another file contradicts ``tokenizer.json``.
    """
    path = layout.backbone / "tokenizer.json"
    text = read_bytes(path).decode("utf-8", errors="replace")
    if layout.static:
        return json.dumps(_without_special_tokens(read_json(path), layout.static), ensure_ascii=False)
    settings = read_json(layout.backbone / "tokenizer_config.json", optional=True)
    side = settings.get("truncation_side", "right")
    if side not in ("left", "right"):
        raise ModelError(f"{path}: truncation_side must be left or right, not {side!r}")
    content = read_json(path)
    network = read_json(layout.backbone / "config.json", optional=True)
    _check_tokens(path, content, settings, _family(settings, network))
    changed = _set_by_class(content, settings, network)
    if layout.lowercase:
        changed |= set_lowercase(content)
    if side == "left":
        changed |= set_left_truncation(content)
    if layout.kind == "cross-encoder" and not _has_types(path, settings, network):
        changed |= set_one_type(content)
    return json.dumps(content, ensure_ascii=False) if changed else text


def _check_tokens(path: Path, content: dict[str, Any], settings: Mapping[str, Any], family: str) -> None:
    """Refuse tokens and rules on which other files contradict ``tokenizer.json``, the ``path``.

    transformers adds tokens that the file lacks. Version 4 keeps the file's rules, version 5 takes the family's.
    """
    special = {**settings, **read_json(path.with_name("special_tokens_map.json"), optional=True)}
    more = special.get("additional_special_tokens") or special.get("extra_special_tokens") or ()
    named = map(_spelling, more.values() if isinstance(more, dict) else more)
    known = {token.get("content") for token in content.get("added_tokens") or ()}
    for token in (*named, *read_json(path.with_name("added_tokens.json"), optional=True)):
        if token not in known:
            raise ModelError(
                f"{path} lacks the token {token!r}, which another file of the folder adds; make a bundle with "
                "`embedkit export`"
            )
    model = content.get("model") or {}
    parts = (content.get(part) or {} for part in ("normalizer", "pre_tokenizer"))
    rules = (model.get("type"), *(part.get("type") for part in parts))
    usual = _REBUILT.get(family)
    if usual is None or rules[0] != usual[0]:  # of another family, whatever the folder has
        return
    if rules != usual:
        raise ModelError(f"{path} has the rules {rules}, those of {family} are {usual}; {_DIFFER}")
    added = _special_tokens(content.get("post_processor"))
    stored = {**dict(zip(("cls_token", "sep_token"), added, strict=False)), "unk_token": model.get("unk_token")}
    named_so = {role: _spelling(special.get(role, token)) for role, token in stored.items() if token}
    if len(added) != 2 or any(stored[role] != token for role, token in named_so.items()):
        raise ModelError(f"{path} has {stored}, other files of the folder {named_so}; {_DIFFER}")


def _spelling(token: Any) -> Any:
    """Return a special token, which an object may describe."""
    return token.get("content") if isinstance(token, dict) else token


def _special_tokens(rule: dict[str, Any] | None) -> list[str]:
    """Return the special tokens that a post-processor adds to a text."""
    rule = rule or {}
    pieces = [piece["SpecialToken"]["id"] for piece in rule.get("single", ()) if "SpecialToken" in piece]
    pair = [rule[role][0] for role in ("cls", "sep") if role in rule]
    return [*pieces, *pair, *(token for step in rule.get("processors", ()) for token in _special_tokens(step))]


def _has_types(path: Path, settings: Mapping[str, Any], network: Mapping[str, Any]) -> bool:
    """Whether transformers gives the network of a cross-encoder the types of tokens."""
    names, named = settings.get("model_input_names"), settings.get("tokenizer_class")
    if names is None and named == "PreTrainedTokenizerFast" and network.get("type_vocab_size", 1) > 1:
        raise ModelError(f"{path.with_name('tokenizer_config.json')} has no model_input_names; {_DIFFER}")
    return named != "TokenizersBackend" if names is None else "token_type_ids" in names


def _without_special_tokens(content: dict[str, Any], form: StaticForm) -> dict[str, Any]:
    """Return a ``tokenizer.json`` without special tokens around a text, which no library adds to static models."""
    content["post_processor"] = None
    if form == "model2vec":  # it truncates on the right, whatever the file has
        content["truncation"] = None
    return content


def set_lowercase(content: dict[str, Any]) -> bool:
    """Lowercase before the normaliser of a ``tokenizer.json``, unless it does so; return whether it changed."""
    normalizer: dict[str, Any] = content.get("normalizer") or {}
    steps = normalizer["normalizers"] if normalizer.get("type") == "Sequence" else [normalizer]
    steps = [step for step in steps if step]
    if any(step["type"] == "Lowercase" or step.get("lowercase") is True for step in steps):
        return False
    content["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}, *steps]}
    return True


def set_left_truncation(content: dict[str, Any]) -> bool:
    """Make a ``tokenizer.json`` drop the beginning of a long text, not its end; return whether it changed."""
    old = content.get("truncation")
    default = {"max_length": 512, "strategy": "LongestFirst", "stride": 0}
    content["truncation"] = {**default, **(old or {}), "direction": "Left"}
    return bool(content["truncation"] != old)


def set_one_type(content: dict[str, Any]) -> bool:
    """Give both texts of a pair the same token type in a ``tokenizer.json``; return whether it changed."""
    old = content.get("post_processor")
    content["post_processor"] = _with_one_type(old)
    return bool(content["post_processor"] != old)


def _with_one_type(rule: dict[str, Any] | None) -> dict[str, Any]:
    first, second = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    if rule is None:
        return {"type": "TemplateProcessing", "single": [first], "pair": [first, second], "special_tokens": {}}
    if rule["type"] == "Sequence":
        return rule | {"processors": [_with_one_type(step) for step in rule["processors"]]}
    if rule["type"] == "TemplateProcessing":
        template = {name: [_of_one_type(piece) for piece in rule[name]] for name in ("single", "pair")}
        return rule | template
    if rule["type"] == "BertProcessing":
        (cls, cls_id), (sep, sep_id) = rule["cls"], rule["sep"]
        begin, end = ({"SpecialToken": {"id": token, "type_id": 0}} for token in (cls, sep))
        numbers = {
            token: {"id": token, "ids": [id_], "tokens": [token]} for token, id_ in ((cls, cls_id), (sep, sep_id))
        }
        single, pair = [begin, first, end], [begin, first, end, second, end]
        return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": numbers}
    return rule


def _of_one_type(piece: dict[str, Any]) -> dict[str, Any]:
    return {kind: settings | {"type_id": 0} for kind, settings in piece.items()}


def _family(settings: Mapping[str, Any], network: Mapping[str, Any]) -> str:
    named = settings.get("tokenizer_class") or network.get("tokenizer_class") or network.get("model_type")
    return str(named).lower().removesuffix("fast").removesuffix("tokenizer")


def _set_by_class(content: dict[str, Any], settings: Mapping[str, Any], network: Mapping[str, Any]) -> bool:
    """Apply to a ``tokenizer.json`` what transformers' tokenizer class sets there; return whether it changed.

    The class is that of the network where ``tokenizer_config.json`` names none. Those of the BERT and RoBERTa
    families also set their defaults; generic classes set nothing.
    """
    named, family = settings.get("tokenizer_class") or network.get("tokenizer_class"), _family(settings, network)
    if family in _ROBERTA_TOKENIZERS:
        part, kind, rules = content.get("pre_tokenizer") or {}, "ByteLevel", _SPACING
    else:
        part, kind, rules = content.get("normalizer") or {}, "BertNormalizer", _CASING
    has_defaults = family in _BERT_TOKENIZERS + _ROBERTA_TOKENIZERS
    if part.get("type") != kind or not (has_defaults or named not in _GENERIC_TOKENIZERS):
        return False
    changes = {
        key: settings.get(name, default)
        for name, (key, default) in rules.items()
        if has_defaults or name in settings
    }
    changed = any(part.get(key) != value for key, value in changes.items())
    part.update(changes)
    return changed
