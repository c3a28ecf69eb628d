"""Options that several commands have: how results are printed, and how a model runs (on ONNX Runtime or torch)."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from embedkit.atomic import expanded
from embedkit.errors import InputError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from embedkit.protocols import PairScorer, TextEncoder
    from embedkit.runtime.encoder import Encoder
    from embedkit.runtime.pool import EncoderPool

MODEL = "a bundle, a bundled name, a model folder or a hub id"
COLLECTION = "the folder of a collection, milvus:URI#NAME or qdrant:URL#NAME"


def add_output(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the arguments that name the file to write; :func:`check_output` checks them."""
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="FILE", help=what)
    parser.add_argument("--replace", action="store_true", help="replace FILE if it exists")


def check_output(arguments: argparse.Namespace, *, whole_folder: bool = False) -> None:
    """Refuse to replace a file, or a ``whole_folder`` with files, unless it was asked for; before any work."""
    output: Path = arguments.output
    if arguments.replace:
        return
    if output.is_file():
        raise InputError(f"there is a file {output} already; add --replace, or choose another --output")
    if whole_folder and output.is_dir() and any(output.iterdir()):
        raise InputError(
            f"there is a folder {output} with files already; add --replace, or choose another --output"
        )


def check_form(output: Path | None, *forms: str) -> None:
    """Reject an output whose name does not end in one of the forms, before any work."""
    if output is not None and output.suffix not in forms:
        raise InputError(f"expected an output that ends in {', '.join(forms)}, got {output}")


def check_apart(path: Path | str | None, other: Path | str | None, argument: str, what: str) -> None:
    """Refuse to write the file of an argument over another one, such as the input, before any work."""
    if path is not None and other is not None and Path(path).resolve() == Path(other).resolve():
        raise InputError(f"{argument}: {path} is the {what}, too", parameters=[argument])


def add_text_column(parser: argparse.ArgumentParser) -> None:
    """Add the column of the texts."""
    parser.add_argument(
        "--text-column", default="text", metavar="NAME", help="column or key of the texts (default: %(default)s)"
    )


def add_files(parser: argparse._ActionsContainer, flag: str, what: str) -> None:
    """Add a list of files; the option may be repeated."""
    parser.add_argument(
        flag, type=Path, action="append", default=[], metavar="FILE", help=f"{what}; may be repeated"
    )


def add_settings(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``--set``."""
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=what)


def explicit(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return those of the arguments that are on the command line, by name."""
    return {name: value for name in names if (value := getattr(arguments, name)) is not None}


def refuse_unused(arguments: argparse.Namespace, case: str, *names: str) -> None:
    """Reject arguments of the command line that have no effect in some case, such as ``"without --http"``."""
    if given := explicit(arguments, *names):
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise InputError(f"{flags}: no effect {case}")


def apply_settings(
    mapping: Mapping[str, Any], arguments: argparse.Namespace, flags: Mapping[str, str]
) -> dict[str, Any]:
    """Return the configuration of a run with flags, at their paths such as ``optim.lr``, and then ``--set``."""
    from embedkit.config import apply_overrides, set_path
    from embedkit.training.config import override, without_steps

    given: dict[str, Any] = {}
    for name, value in explicit(arguments, *flags).items():
        given = set_path(given, flags[name], value)
    result = override(mapping, given)
    return apply_overrides(without_steps(result, apply_overrides({}, arguments.set)), arguments.set)


def show(arguments: argparse.Namespace, result: object, sentence: str) -> None:
    """Print a result as JSON on request, or else a sentence about it."""
    print(json.dumps(result, indent=2) if arguments.json else sentence)


logger = logging.getLogger(__name__)

_WORTH_REPORTING = 0.03  # share of unknown tokens; English text has fewer, languages unknown to a model many more


def locate(source: str) -> str:
    """Return the model folder of a run folder; any other path or name unchanged."""
    path = expanded(source)
    if (path / "model" / "config.json").is_file():
        return str(path / "model")
    return str(path) if path.exists() else source


def choose_backend(location: str) -> str:
    """Return ``"onnx"`` for files, bundled names and folders with an ONNX file, otherwise ``"torch"``."""
    path = Path(location)
    if path.is_dir():
        return "onnx" if any(path.glob("*.onnx")) or any(path.glob("onnx/*.onnx")) else "torch"
    return "torch" if "/" in location and not path.exists() and path.suffix != ".onnx" else "onnx"


def load_model(source: str, backend: str = "auto") -> TextEncoder | PairScorer:
    """Load an encoder or a cross-encoder by a backend; ``"auto"`` is that of :func:`choose_backend`."""
    location, pairs = locate(source), is_cross_encoder(source, backend)
    if _backend(location, backend) == "onnx":
        from embedkit.runtime.cross_encoder import CrossEncoder
        from embedkit.runtime.encoder import Encoder

        return CrossEncoder.load(location) if pairs else Encoder.load(location)
    from embedkit.modeling.cross_encoder import PairEncoder
    from embedkit.modeling.encoder import SentenceEncoder
    from embedkit.modeling.torch_encoder import TorchCrossEncoder, TorchEncoder

    if pairs:
        return TorchCrossEncoder(PairEncoder.load(location))
    return TorchEncoder(SentenceEncoder.load(location))


def in_processes(
    encoder: Encoder, processes: int | None, threads: int | None = None
) -> AbstractContextManager[Encoder | EncoderPool]:
    """Return the encoder in that many processes, or the encoder itself if None."""
    return contextlib.nullcontext(encoder) if processes is None else encoder.pool(processes, threads=threads)


def report_unknown(model: object) -> None:
    """Log a warning if an encoder on ONNX Runtime or the kernel met more than a few percent of unknown tokens."""
    share = getattr(model, "unknown_so_far", 0.0)
    if share > _WORTH_REPORTING:
        logger.warning(
            "%s does not cover %.1f %% of the tokens of these texts", getattr(model, "name", ""), 100 * share
        )


def is_cross_encoder(source: str, backend: str = "auto") -> bool:
    """Whether :func:`load_model` would return a cross-encoder, without reading the weights of a folder."""
    location = locate(source)
    if _backend(location, backend) == "torch":
        from embedkit.modeling.cross_encoder import is_cross_encoder as has_one_logit
        from embedkit.runtime.find import find_folder

        return has_one_logit(find_folder(location))
    from embedkit.runtime.bundle import read_bundle
    from embedkit.runtime.find import find_model

    path = find_model(location)
    if path.is_file():
        return read_bundle(path).manifest.kind == "cross-encoder"
    return (path / "config.json").is_file() and not (path / "modules.json").is_file()


def _backend(location: str, wanted: str) -> str:
    return choose_backend(location) if wanted == "auto" else wanted
