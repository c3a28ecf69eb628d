"""`embedkit inspect`: contents, origin and size of a bundle."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from embedkit.runtime.bundle import Bundle

HELP = "describe a bundle; --verbose shows everything, --verify checks it on this machine"
EXAMPLES = """
embedkit inspect tiny.onnx --verbose
embedkit inspect tiny --verify --json
"""

_WEIGHTS_SHOWN = 5
_LABEL_WIDTH = 20
_SENTENCES = ("name", "kind", "dimension", "max_length", "pooling", "normalize")
_SECTIONS = ("metrics", "gates", "config")
_OF_THE_RUN = ("steps", "best_step", "seconds")
_RANGES = "measured, for embeddings of a byte per dimension"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a bundle: a file, or a bundled name")
    parser.add_argument(
        "--verify",
        action="store_true",
        help="run the golden texts or pairs on this machine and compare; exit code 1 if they differ",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the bundle's metadata; return 1 if verification was requested and failed."""
    from embedkit.runtime.bundle import read_bundle
    from embedkit.runtime.cross_encoder import CrossEncoder
    from embedkit.runtime.encoder import Encoder
    from embedkit.runtime.find import find_model

    bundle = read_bundle(find_model(arguments.model))
    report = _describe(bundle, arguments.model)
    if arguments.verify:
        model = Encoder(bundle) if bundle.manifest.kind == "encoder" else CrossEncoder(bundle)
        report["verification"] = model.verify()
    if arguments.json:
        print(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        print("\n".join(_lines(report) if arguments.verbose else _summary(report)))
    return 0 if report["verification"] is None or report["verification"]["passed"] else 1


def _describe(bundle: Bundle, model: str) -> dict[str, Any]:
    from embedkit.runtime.protobuf import largest_initializers

    card = bundle.path.with_suffix(".md")
    return {
        "model": model,
        "path": str(bundle.path),
        "fingerprint": bundle.fingerprint,
        "bytes": len(bundle.model),
        "parts": bundle.size_by_part(),
        "largest_weights": [weight._asdict() for weight in largest_initializers(bundle.model, _WEIGHTS_SHOWN)],
        "manifest": asdict(bundle.manifest),
        "card": card.read_text(encoding="utf-8", errors="replace") if card.is_file() else None,
        "verification": None,
    }


def _summary(report: dict[str, Any]) -> Iterator[str]:
    """Say what the file is, whether it is complete, and how to use it; then its origin, without long lists."""
    from embedkit.config import flat

    manifest = report["manifest"]
    yield from _heading(report)
    yield from _answers(report)
    for name, value in manifest.items():
        if name == "teacher":
            yield from _field(name, value.get("name"))
        elif name == "corpus" and value:
            yield _row(name, f"{len(value):,} sources, {sum(entry.get('rows', 0) for entry in value):,} rows")
        elif name not in ("licence", *_SENTENCES, *_SECTIONS):
            yield from _field(name, value)
    parts = (f"{name} {_bytes(size)}" for name, size in report["parts"].items())
    yield _row("size", f"{_bytes(report['bytes'])}: {', '.join(parts)}")
    yield from (_row(key, value) for key, value in flat(manifest["metrics"]) if key not in _OF_THE_RUN)
    yield from _field("gates passed", ", ".join(manifest["gates"]))
    yield from _verification(report)
    yield "--verbose shows corpus, gates, settings, weights and card"


def _lines(report: dict[str, Any]) -> Iterator[str]:
    """Describe the bundle completely, a value a line."""
    from embedkit.config import flat

    weights = {weight["name"]: _bytes(weight["size_bytes"]) for weight in report["largest_weights"]}
    manifest = report["manifest"] | ({"ranges": _RANGES} if report["manifest"]["ranges"] else {})
    parts = {name: _bytes(size) for name, size in report["parts"].items()}
    leaves = list(flat({**manifest, "size": parts, "largest weight": weights}))
    width = max(len(name) for name, _ in leaves)
    yield from _heading(report)
    yield from (f"  {name:<{width}} {_value(value)}" for name, value in leaves if value not in ([], ""))
    if report["card"]:
        yield from ("", "card", "", report["card"].rstrip())
    yield from _verification(report)


def _heading(report: dict[str, Any]) -> Iterator[str]:
    manifest = report["manifest"]
    yield f"{manifest['name']}: {_sentence(manifest)}"
    yield _row("file", report["path"])
    yield _row("fingerprint", report["fingerprint"])


def _answers(report: dict[str, Any]) -> Iterator[str]:
    """State integrity and licence, and name a command that uses the model."""
    manifest = report["manifest"]
    yield _row("integrity", "complete and unchanged since export, by its fingerprint; --verify also runs it")
    yield _row("licence", manifest["licence"] or "not recorded; ask the author before you use it")
    use = "encode TEXTS.txt -o embeddings.npy -m" if manifest["kind"] == "encoder" else "search IDX QUERY --rerank"
    yield _row("use", f"embedkit {use} {shlex.quote(report['model'])}")


def _verification(report: dict[str, Any]) -> Iterator[str]:
    if report["verification"]:
        kind = report["manifest"]["kind"]
        yield from ("", _verdict(report["verification"], "texts" if kind == "encoder" else "pairs"))


def _sentence(manifest: Mapping[str, Any]) -> str:
    if manifest["kind"] == "cross-encoder":
        return (
            "a cross-encoder: it scores pairs of a query and a passage, of at most "
            f"{manifest['max_length']} tokens, from 0 to 1"
        )
    unit = " of length 1" if manifest["normalize"] else ""
    return (
        f"a text encoder: it turns a text of at most {manifest['max_length']} tokens into a vector of "
        f"{manifest['dimension']} dimensions{unit} ({manifest['pooling']} pooling)"
    )


def _field(name: str, value: Any) -> Iterator[str]:
    """Print one field of the manifest unless it is empty."""
    label = name.replace("_", " ")
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield _row(f"{label} {key}", repr(inner) if name == "prompts" else inner)
    elif name == "ranges" and value:
        yield _row(label, _RANGES)
    elif value:
        yield _row(label, value)


def _verdict(verification: Mapping[str, Any], unit: str) -> str:
    verdict = "verified" if verification["passed"] else "NOT VERIFIED"
    tokens = "the same tokens" if verification["same_tokens"] else "OTHER TOKENS"
    bits = {None: "", True: ", with the recorded bits", False: ", with OTHER BITS than recorded"}
    return (
        f"{verdict}: {verification['texts']} golden {unit} gave {tokens}, and values at most "
        f"{verification['difference']:.2g} apart (allowed: {verification['tolerance']:.2g})"
        f"{bits[verification['same_bits']]}"
    )


def _row(label: str, value: Any) -> str:
    return f"  {label:<{_LABEL_WIDTH}} {_value(value)}".rstrip()


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _bytes(count: int) -> str:
    if count < 1000:
        return f"{count} B"
    return f"{count / 1e3:.1f} kB" if count < 1e6 else f"{count / 1e6:.1f} MB"
