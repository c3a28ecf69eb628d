"""The gate on texts: a model's own library and its bundle read the same texts, and agree.

All other gates feed token ids, so a setting of the folder that was misread would pass them. Here transformers'
``AutoTokenizer`` reads the folder again, or for a static model the tokenizers package, and sentence-transformers
or model2vec encode the texts if they are installed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tokenizers
from tokenizers import normalizers

from embedkit.errors import ExportError, first_line
from embedkit.export.gates import Candidate, Gate, largest_difference, rounded, run_torch, smallest_cosine
from embedkit.modeling.cross_encoder import PairEncoder
from embedkit.modeling.encoder import SentenceEncoder
from embedkit.modeling.pretrained import UNLIMITED, longest_text
from embedkit.modeling.vocabulary import library_tokenizer
from embedkit.protocols import FloatArray
from embedkit.runtime.folder_layout import Layout, read_json, read_layout, read_transformer
from embedkit.runtime.tokenization import Tokens

_ENOUGH_TOKENS = 1024  # longer texts are compared as tokens only: attention over them takes minutes
_SAME = 1e-4  # the folder's own library and this package compute the same network in float32

_TEXTS = (
    "",
    "UPPER and Mixed Case",
    "Déjà vu: naïve café, Ünïcödé, Straße, İstanbul",
    "  spaces before,\tbetween\n and   after  ",
    "東京は日本の首都です。 Москва 🎉",
)


class Origin(NamedTuple):
    """The folder of a model, and the caller's maximum length, if any, and permission to run its Python code."""

    folder: Path
    max_length: int | None = None
    trust_remote_code: bool = False


def check_reading(
    original: SentenceEncoder | PairEncoder,
    origin: Origin,
    *,
    candidate: Candidate | None,
    least: float | None,
    most: float | None = None,
) -> Gate:
    """Compare a model with its folder as the folder's own library reads it.

    The gate passes if the tokens of every text are equal, the file gives what the torch model gives for the
    library's tokens, to the rounding of its precision, and sentence-transformers or model2vec, whichever wrote the
    folder and if it is there, gives the same results as the torch model. Versions of sentence-transformers before
    6 are not asked for texts that they change. Without a candidate, as its pruned vocabulary gives other tokens,
    the file is not compared. ``least`` is the minimum cosine of its embeddings, ``most`` the maximum difference of
    its scores. A maximum length that the caller chose replaces the folder's.

    Raises:
        ExportError: the library cannot run the folder.
    """
    folder, max_length, trust_remote_code = origin
    layout = read_layout(folder)
    reader = (
        _StaticReader(layout) if layout.static else _Reader(layout, original, trust_remote_code=trust_remote_code)
    )
    length = max_length or reader.length
    items = _items(original, reader.special_tokens, length)
    expected = reader.tokenize(items, length)
    tokens = original.tokenizer.tokenize(items)
    differing = [row for row in range(len(items)) if _differs(expected, tokens, row)]
    figures: dict[str, object] = {
        "library": _version(reader.package),
        "texts": len(items),
        "differently_tokenized": len(differing),
    }
    if differing:
        figures["for_example"] = str(items[differing[0]])[:60]
        return Gate("texts", passed=False, figures=figures)
    # model2vec also cuts a long text to a number of characters; sentence-transformers has no length here.
    longest = min(_ENOUGH_TOKENS, length - 1) if layout.static else _ENOUGH_TOKENS
    short = [row for row in range(len(items)) if len(expected.ids[row]) <= longest]
    values = run_torch(original)(expected.choose(short))
    chosen = [items[row] for row in short]
    passed = True
    if candidate is not None:
        passed = _agrees(values, candidate.run(chosen), least, most, figures)
    peer = "model2vec" if layout.static == "model2vec" else "sentence_transformers"
    if importlib.util.find_spec(peer) is not None and layout.memory is None:  # which only embedkit can read
        figures["library"] = _version(peer)
        library_length = None if layout.static else max_length
        others: list[str] = []
        if peer == "sentence_transformers" and is_early():
            read = reader.tokenize([_read_early(item, lowercase=layout.lowercase) for item in chosen], length)
            alike = [row for row, place in enumerate(short) if list(read.ids[row]) == list(expected.ids[place])]
            chosen, values = [chosen[row] for row in alike], values[alike]
        try:
            if peer == "model2vec":
                rows = _run_model2vec(folder, chosen)
            else:
                rows, others = _run_sentence_transformers(
                    original, folder, library_length, chosen, trust_remote_code=trust_remote_code
                )
        except Exception as error:  # a library and a model's own code raise anything
            reason = first_line(error)
            raise ExportError(f"{figures['library']} cannot run {folder} for comparison: {reason}") from error
        if others:
            return Gate("texts", passed=False, figures=figures | {"differently_read": ", ".join(others)})
        difference = largest_difference(values, rows)
        figures |= {"largest_torch_difference": rounded(difference), "largest_torch_difference_allowed": _SAME}
        passed = passed and difference <= _SAME
    return Gate("texts", passed, figures)


def _differs(expected: Tokens, tokens: Tokens, row: int) -> bool:
    """Whether a text has other ids or, if both have types, other types."""
    if expected.ids[row] != list(tokens.ids[row]):
        return True
    if not (expected.type_ids and tokens.type_ids):
        return False
    return expected.type_ids[row] != list(tokens.type_ids[row])


def _version(package: str) -> str:
    name = package.replace("_", "-")
    return f"{name} {importlib.metadata.version(name)}"


def is_early() -> bool:
    """Whether sentence-transformers is installed in a version that changes texts: see :func:`_read_early`."""
    there = importlib.util.find_spec("sentence_transformers") is not None
    return there and int(_version("sentence_transformers").rpartition(" ")[2].partition(".")[0]) < 6


def _read_early(item: Any, *, lowercase: bool) -> Any:
    """Return a text or pair as sentence-transformers changes it before version 6, special tokens included."""
    if isinstance(item, tuple):
        return tuple(_read_early(text, lowercase=lowercase) for text in item)
    return item.strip().lower() if lowercase else item.strip()


def _agrees(
    expected: FloatArray, got: FloatArray, least: float | None, most: float | None, figures: dict[str, object]
) -> bool:
    """Compare embeddings or scores of the file and of the torch model."""
    if expected.ndim == 1:
        difference = largest_difference(expected, got)
        figures |= {"largest_difference": rounded(difference), "largest_difference_allowed": most}
        return bool(np.isfinite(difference)) if most is None else difference <= most
    cosine = smallest_cosine(expected, got)
    figures |= {"smallest_cosine": round(cosine, 6), "smallest_cosine_allowed": least}
    return least is None or cosine >= least


class _Reader:
    """A folder's tokenizer and maximum length as transformers and sentence-transformers read them."""

    package = "transformers"

    def __init__(self, layout: Layout, model: SentenceEncoder | PairEncoder, *, trust_remote_code: bool) -> None:
        self._tokenizer = library_tokenizer(layout.backbone, trust_remote_code=trust_remote_code)
        if layout.lowercase:  # which is a setting of sentence-transformers alone
            backend = self._tokenizer.backend_tokenizer
            steps = [normalizers.Lowercase(), *([backend.normalizer] if backend.normalizer else [])]
            backend.normalizer = normalizers.Sequence(steps)
        self._typed = isinstance(model, PairEncoder) and model.token_types > 1
        self.special_tokens = self._tokenizer.all_special_tokens
        self.length = self._find_length(layout.backbone, longest_text(model.config))

    def _find_length(self, backbone: Path, longest: int) -> int:
        """Return the length that sentence-transformers uses: its own setting, else the tokenizer's."""
        chosen = read_transformer(backbone).get("max_seq_length")
        length = int(min(chosen or self._tokenizer.model_max_length, longest))
        return 512 if length == longest > 100_000 else length  # unlimited

    def tokenize(self, items: Sequence[Any], length: int) -> Tokens:
        """Tokenize texts or pairs, with at most that many tokens each."""
        is_pairs = isinstance(items[0], tuple)
        texts = ([first for first, _ in items], [second for _, second in items]) if is_pairs else (list(items),)
        encoded = self._tokenizer(*texts, truncation=True, max_length=length)
        ids = encoded["input_ids"]
        types = encoded.get("token_type_ids", [[0] * len(row) for row in ids])  # not all tokenizers give types
        return Tokens(ids, [], types if self._typed else None)


class _StaticReader:
    """The tokenizer of a static model, as sentence-transformers and model2vec use it."""

    package = "tokenizers"

    def __init__(self, layout: Layout) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_file(str(layout.backbone / "tokenizer.json"))
        self._tokenizer.no_padding()
        added = self._tokenizer.get_added_tokens_decoder().values()
        self.special_tokens = [token.content for token in added]
        truncation = self._tokenizer.truncation or {}
        self.length = int(truncation.get("max_length", UNLIMITED))
        self._direction = truncation.get("direction", "right")
        if layout.static == "model2vec":
            settings = read_json(layout.backbone / "config.json")
            self.length, self._direction = settings.get("max_length", 512) or UNLIMITED, "right"

    def tokenize(self, texts: Sequence[str], length: int) -> Tokens:
        """Tokenize texts, with at most that many tokens each."""
        self._tokenizer.enable_truncation(length, direction=self._direction)
        return Tokens(
            [encoding.ids for encoding in self._tokenizer.encode_batch(texts, add_special_tokens=False)], []
        )


def _items(model: SentenceEncoder | PairEncoder, special: Sequence[str], length: int) -> list[Any]:
    """Return texts or pairs that every setting changes."""
    most = 2 * _ENOUGH_TOKENS if length == UNLIMITED else length
    long = "a long text, First to last word " * (most // 6 + 1)
    texts = [*_TEXTS, f"{' '.join(special)} are special", long]  # first, because a pair may be cut
    if isinstance(model, PairEncoder):
        return [(texts[row], texts[row - 1]) for row in range(len(texts))]
    return texts + [prompt + text for prompt in model.prompts.values() if prompt for text in texts[1:]]


def _run_sentence_transformers(
    model: SentenceEncoder | PairEncoder,
    folder: Path,
    max_length: int | None,
    items: Sequence[Any],
    *,
    trust_remote_code: bool,
) -> tuple[FloatArray, list[str]]:
    """Return embeddings, of texts that contain their prompts, or scores, and which settings it reads otherwise."""
    peer: Any = importlib.import_module("sentence_transformers")
    torch: Any = importlib.import_module("torch")
    if isinstance(model, PairEncoder):
        scorer = peer.CrossEncoder(
            str(folder), device="cpu", max_length=max_length, trust_remote_code=trust_remote_code
        )
        activation = type(scorer.activation_fn).__name__.lower()  # before version 6, predict replaces it
        scores = np.asarray(scorer.predict(items, activation_fn=torch.nn.Sigmoid()), dtype=np.float32)
        return scores, [] if activation == (model.activation or "sigmoid") else ["activation"]
    encoder = peer.SentenceTransformer(str(folder), device="cpu", trust_remote_code=trust_remote_code).float()
    if max_length is not None:
        encoder.max_seq_length = max_length
    rows = np.asarray(encoder.encode(list(items), prompt="", normalize_embeddings=True), dtype=np.float32)
    pairs = {
        "prompts": (_prompts(encoder.prompts), _prompts(model.prompts)),
        "default_prompt": (encoder.default_prompt_name, model.default_prompt),
        "dimension": (rows.shape[1], model.dimension),
    }
    return rows, [name for name, (theirs, ours) in pairs.items() if theirs != ours]


def _prompts(known: Mapping[str, str]) -> dict[str, str]:
    """Leave out empty prompts of the two names that sentence-transformers gives to every model."""
    return {name: text for name, text in known.items() if text or name not in ("query", "document")}


def _run_model2vec(folder: Path, texts: Sequence[str]) -> FloatArray:
    """Return embeddings of texts that need no truncation."""
    peer: Any = importlib.import_module("model2vec").StaticModel.from_pretrained(folder, force_download=False)
    peer.embedding = peer.embedding.astype(np.float32)  # it returns embeddings of the table's dtype
    rows = peer.encode(list(texts), max_length=None, normalize=True, use_multiprocessing=False)
    return np.asarray(rows, dtype=np.float32)
