"""The sentence encoder: from texts to unit vectors."""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Unpack, get_args

import numpy as np
import numpy.typing as npt

from embedkit.errors import InputError, ModelError
from embedkit.progress import Progress
from embedkit.protocols import FloatArray
from embedkit.runtime.arguments import (
    check_choice,
    check_flag,
    check_iterable,
    check_text,
    check_texts,
    check_whole,
)
from embedkit.runtime.bundle import Bundle
from embedkit.runtime.folder_model import FolderModel, pool
from embedkit.runtime.manifest import Manifest
from embedkit.runtime.model import Model
from embedkit.runtime.options import (
    EncodeCall,
    EncodeOptions,
    Packing,
    Precision,
    Ranges,
    Role,
    check_run_options,
    unit_rows,
    with_prompt,
)
from embedkit.runtime.pool import EncoderPool
from embedkit.runtime.token_ids import Span, TokenIds, TokenSpan, TokenSpans, find_windows
from embedkit.runtime.tokenization import TokenBatch, Tokenizer, Tokens, check_items

logger = logging.getLogger("embedkit")

_MOSTLY = 0.5  # the share of unknown tokens from which a warning is logged
_BUNDLE_OUTPUTS = ("sentence_embedding",)
_FOLDER_OUTPUTS = ("sentence_embedding", "last_hidden_state", "token_embeddings")


class Encoder(Model[Tokenizer, EncodeCall]):
    """A sentence encoder on ONNX Runtime or embedkit's own kernel. Create it with :meth:`load`; it is thread-safe.

    Texts longer than ``max_length`` tokens are truncated. Each call counts them and logs one warning to the logger
    ``embedkit``, which Python prints to stderr unless logging is configured. It is a log message and not a
    :mod:`warnings` warning, because those appear once per code location and not once per call, and because long
    texts must not fail a program that turns warnings into errors. ``on_overflow="error"`` raises instead, and
    ``"windows"`` encodes a long text completely, as the mean of its windows.

    Texts that a model cannot read have few known tokens, and similar embeddings. An encoder logs one warning for
    the first batch that is mostly unknown; :meth:`unknown_share` returns the share for each text.
    """

    _kind = "encoder"
    _unit = "texts"
    _label = "encode"
    _tokenizer_class = Tokenizer
    _warned_of_unknown = False
    _unknown = _total = 0  # unknown tokens, and all tokens, of the texts so far

    @property
    def dimension(self) -> int:
        """D, the number of dimensions of an embedding."""
        return self._manifest.dimension

    def __repr__(self) -> str:
        return f"Encoder(name={self.name!r}, dimension={self.dimension}, max_length={self.max_length})"

    def encode(self, texts: str | Iterable[str], **options: Unpack[EncodeOptions]) -> npt.NDArray[Any]:
        """Encode texts.

        Args:
            texts: one text, or any iterable of texts. An empty text is allowed; its embedding is that of
                the special tokens alone.
            batch_size: maximum number of texts in a batch; if None, only the number of tokens is limited.
            normalize_embeddings: whether rows have unit length; False is possible only if the graph does not
                normalise.
            prompt_name: name of one of the model's prompts, prepended to every text.
            prompt: text of a prompt, instead of a name.
            truncate_dim: number of leading dimensions to keep; rows are normalised again.
            precision: ``"float32"``; ``"uint8"`` or ``"int8"`` for one byte per dimension, by the ranges in a
                bundle that was exported with calibration texts, so equal embeddings become equal bytes;
                ``"ubinary"`` or ``"binary"`` for one bit per dimension, packed into uint8 or int8. Truncated
                rows have the same bytes and bits as the beginning of the full row.
            show_progress_bar: None shows a progress bar on a terminal for calls of more than two seconds.
            on_overflow: handling of texts longer than ``max_length``: ``"truncate"``, ``"error"``, or
                ``"windows"``, which encodes a long text as the mean of its windows (see :meth:`windows`), weighted
                by their tokens and scaled to unit length.

        Returns:
            ``(N, D) float32, unit rows`` in the order of the texts, or ``(D,)`` for one text. Binary precisions
            return ``(N, ceil(D / 8))``.

        Raises:
            InputError: an item is not a text (names its position), or an argument is invalid for the model.
            TextOverflowError: a text is too long and ``on_overflow="error"``.
        """
        call = self._check_options(options, "encode")
        if isinstance(texts, np.ndarray) and texts.ndim == 0:  # one text in an array
            texts = texts.item()
        if isinstance(texts, str):
            rows, truncated = self._run_chunk([texts], 0, call)
            self._truncation_log.add(truncated, 1, unit=self._unit, max_length=self.max_length)
            embedding: npt.NDArray[Any] = rows[0]
            return embedding
        listed = list(check_iterable(texts))
        with contextlib.closing(self._results(listed, call, len(listed))) as results:
            first = next(results, None)
            if first is not None and len(first) == len(listed):  # usually a single chunk, which need not be copied
                return first
            embeddings = np.empty((len(listed), call.packing.width), dtype=call.packing.dtype)
            done = 0
            for rows in () if first is None else itertools.chain([first], results):
                embeddings[done : done + len(rows)] = rows
                done += len(rows)
        return embeddings

    def encode_batches(self, texts: Iterable[str], **options: Unpack[EncodeOptions]) -> Iterator[npt.NDArray[Any]]:
        """Encode a stream of texts in bounded memory.

        Args:
            texts: any iterable of texts, read in chunks of 4096 texts or about 4 million characters.
            options: the keyword arguments of :meth:`encode`.

        Returns:
            An iterator over arrays ``(n, D) float32, unit rows``, one per chunk; their concatenation equals
            the result of :meth:`encode`.

        Raises:
            InputError: as :meth:`encode`; immediately for an argument, and with its chunk for a text.
            TextOverflowError: as :meth:`encode`, when its chunk is reached.
        """
        return self._results(check_iterable(texts), self._check_options(options, "encode_batches"))

    def encode_chunk(
        self, texts: Sequence[str], first: int, **options: Unpack[EncodeOptions]
    ) -> tuple[npt.NDArray[Any], int]:
        """Encode at most one chunk of :meth:`encode_batches`, for callers that distribute chunks.

        Args:
            texts: at least one text.
            first: position of the first text in the whole call, for messages.
            options: the keywords of :meth:`encode`.

        Returns:
            The rows, and the number of truncated texts, which is not logged.

        Raises:
            InputError, TextOverflowError: as :meth:`encode`.
        """
        call, first = self._check_options(options, "encode_chunk"), check_whole(first, "first", least=0)
        return self._run_chunk(list(check_iterable(texts)), first, call)

    def pool(self, processes: int | None = None, *, threads: int | None = None) -> EncoderPool:
        """Start processes that encode with identical results, for machines with many processors.

        Use it in a ``with`` statement. The script needs no ``if __name__ == "__main__"`` guard::

            with encoder.pool(processes=8) as pool:
                embeddings = pool.encode(texts)

        Args:
            processes: number of processes; if None, the number of processors available to this process.
            threads: threads per process; if None, the available processors are divided among the processes.

        Raises:
            InputError: a number is invalid, or the encoder was not created by :meth:`load`.
            ModelError: the model's file has changed since it was loaded, or a process failed to start.
            WorkerError: no process or thread can be started on this system, by a frozen program, or at exit.
        """
        if self._origin is None:
            raise InputError("a pool loads the model again, so it takes an encoder made by Encoder.load")
        return EncoderPool(self, self._origin, processes, threads)

    def encode_query(self, texts: str | Iterable[str], **options: Unpack[EncodeOptions]) -> npt.NDArray[Any]:
        """:meth:`encode` with the model's prompt for queries, if it has one and none is given."""
        return self.encode(texts, **with_prompt(options, "query", self._manifest.prompts))

    def encode_document(self, texts: str | Iterable[str], **options: Unpack[EncodeOptions]) -> npt.NDArray[Any]:
        """:meth:`encode` with the model's prompt for documents, if it has one and none is given."""
        return self.encode(texts, **with_prompt(options, "document", self._manifest.prompts))

    def tokenize(
        self,
        texts: Sequence[str],
        *,
        role: Role | None = None,
        prompt_name: str | None = None,
    ) -> Tokens:
        """Tokenize texts, the first half of :meth:`encode`, for example to estimate the cost of encoding.

        Args:
            texts: N texts.
            role: whether the texts are queries or documents, for models with prompts for them.
            prompt_name: name of one of the model's prompts, overriding ``role``.

        Returns:
            Token ids, including special tokens, truncated to ``max_length``; ``overflowing`` marks the truncated
            texts, which are not logged.

        Raises:
            InputError: as :meth:`encode`.
        """
        prompt = self._prompt_of(role, prompt_name)
        return self._tokenizer.tokenize(list(check_iterable(texts)), prompt=prompt)

    def unknown_share(self, texts: Sequence[str]) -> FloatArray:
        """Return how much of each text the model cannot read: ``(N,) float32``, from 0 to 1.

        It is the share of unknown tokens among those of the text up to ``max_length``. Many tokenizers replace a
        whole word, or a whole sentence of a script without spaces, by one unknown token. Tokenizers without one,
        such as those of bytes, give 0.

        Raises:
            InputError: an item is not a text.
        """
        return self._unknown_share(self._tokenizer.tokenize(check_texts(check_iterable(texts), "texts")))

    @property
    def unknown_so_far(self) -> float:
        """Share of unknown tokens, as :meth:`unknown_share`, among all tokens so far; 0 before the first text."""
        return self._unknown / self._total if self._total else 0.0

    def token_spans(
        self, texts: Sequence[str], *, special_tokens: bool = True, prompt_name: str | None = None
    ) -> list[list[TokenSpan]]:
        """Return the tokens of texts without truncation, with their characters in the prompt and the text.

        Args:
            texts: N texts.
            special_tokens: whether those that the tokenizer adds are among them.
            prompt_name: name of one of the model's prompts, put before each text.

        Raises:
            InputError: an item is not a text, or the model has no such prompt.
        """
        prompt = self._choose_prompt(prompt_name, None)
        prompted = [prompt + text for text in check_items(list(check_iterable(texts)))]
        special_tokens = check_flag(special_tokens, "special_tokens")
        return self._spans.find(prompted, special_tokens=special_tokens)

    def windows(
        self,
        texts: Sequence[str],
        *,
        max_tokens: int | None = None,
        overlap: int = 0,
        role: Role | None = None,
        prompt_name: str | None = None,
        headings: Sequence[str] | None = None,
    ) -> list[list[Span]]:
        """Divide texts into windows that the model encodes without truncation.

        A window ends, in its second half, after a paragraph, else a line, a sentence or a word.

        Args:
            texts: N texts.
            max_tokens: maximum number of tokens of a window, without special tokens and prompt; if None, as many
                as fit.
            overlap: maximum number of tokens that consecutive windows share.
            role: as for :meth:`tokenize`.
            prompt_name: as for :meth:`tokenize`.
            headings: N texts that will stand on a line before each window of a text, for which room is left, at
                most half of it; "" for none.

        Returns:
            for each text the first character and the end of each window, exclusive; none for a text without
            tokens.

        Raises:
            InputError: a number is out of range, or the model has no such prompt.
        """
        prompt = self._prompt_of(role, prompt_name)
        room = self._room(prompt)
        width = room if max_tokens is None else check_whole(max_tokens, "max_tokens", most=room)
        shared = check_whole(overlap, "overlap", least=0)
        checked = check_items(list(check_iterable(texts)))
        above = [""] * len(checked) if headings is None else list(check_iterable(headings, "headings"))
        if len(above) != len(checked):
            raise InputError(f"expected {len(checked)} headings, one for each text, got {len(above)}")
        pairs = zip(checked, check_items(above), strict=True)
        return [self._windows(text, prompt, width, shared, heading) for text, heading in pairs]

    def check_token_ids(self, ids: Sequence[Sequence[int]]) -> Tokens:
        """Token ids of this model made elsewhere, special tokens included, as :meth:`encode_tokens` takes them.

        Raises:
            InputError: an item is not a list, is empty or longer than ``max_length``, or an id is not in the
                vocabulary.
        """
        most = self._tokenizer.vocabulary_size
        lists = enumerate(check_iterable(ids, "ids"))
        rows = [list(check_iterable(one, f"ids[{position}]")) for position, one in lists]
        for position, row in enumerate(rows):
            if not 0 < len(row) <= self.max_length:
                raise InputError(f"expected 1 to {self.max_length} ids at position {position}, not {len(row)}")
            if not all(_is_whole(id_) and 0 <= id_ < most for id_ in row):
                raise InputError(f"expected token ids from 0 to {most - 1} at position {position}")
        return Tokens([list(map(int, row)) for row in rows], [])

    def encode_tokens(self, tokens: Tokens) -> FloatArray:
        """Encode the result of :meth:`tokenize`: ``(N, D) float32, unit rows``."""
        return self._default_call.packing.apply(self._runner.run(tokens))

    def pack(
        self, embeddings: FloatArray, precision: Precision, *, truncate_dim: int | None = None
    ) -> npt.NDArray[Any]:
        """Convert embeddings of this model as :meth:`encode` does for ``precision`` and ``truncate_dim``.

        Args:
            embeddings: ``(N, D) float32``, full results of :meth:`encode`.
            precision: as for :meth:`encode`.
            truncate_dim: as for :meth:`encode`.

        Raises:
            InputError: these are not embeddings of this model, or it does not support the precision or dimension.
        """
        options: EncodeOptions = {"precision": precision, "truncate_dim": truncate_dim}
        call, rows = self._check_options(options, "pack"), _as_rows(embeddings, "embeddings")
        if rows.shape[1] != self.dimension:
            raise InputError(f"embeddings must have {self.dimension} dimensions, not {rows.shape[1]}")
        return call.packing.apply(rows)

    def similarity(self, a: npt.ArrayLike, b: npt.ArrayLike) -> FloatArray:
        """Compute the cosine of every embedding in ``a`` with every one in ``b``.

        Args:
            a: ``(N, D)`` or ``(D,)`` floats, or an empty list.
            b: ``(M, D)`` or ``(D,)`` floats, or an empty list.

        Returns:
            ``(N, M) float32``; the cosine with a row of zeros is 0.

        Raises:
            InputError: the arguments are not embeddings of the same width.
        """
        rows, columns = _as_rows(a, "a"), _as_rows(b, "b")
        if not (len(rows) and len(columns)):
            return np.empty((len(rows), len(columns)), dtype=np.float32)
        if rows.shape[1] != columns.shape[1]:
            raise InputError(f"a has {rows.shape[1]} dimensions and b has {columns.shape[1]}")
        cosines: FloatArray = unit_rows(rows) @ unit_rows(columns).T
        return np.clip(cosines, -1, 1, out=cosines)  # rounding exceeds 1

    @cached_property
    def _spans(self) -> TokenSpans:
        return TokenSpans(self._tokenizer.json)

    @cached_property
    def _ranges(self) -> Ranges | None:
        written = self._manifest.ranges
        return Ranges.from_text(written, self.dimension) if written else None

    def _check_shape(self, width: int | None) -> tuple[int, ...]:
        if width not in (None, self.dimension):
            raise ModelError(f"the graph returns {width} dimensions, but the manifest declares {self.dimension}")
        return (self.dimension,)

    def _outputs(self, model: Bundle | FolderModel) -> Sequence[str]:
        is_whole = isinstance(model, Bundle) or model.has_head
        return _BUNDLE_OUTPUTS if is_whole else _FOLDER_OUTPUTS

    @cached_property
    def _default_call(self) -> EncodeCall:
        return self._check_options({"batch_size": None}, "encode")

    def _check_options(self, options: EncodeOptions, caller: str) -> EncodeCall:
        if not options:
            return self._default_call
        run_options = check_run_options(options, EncodeOptions, caller)
        packing = Packing.choose(
            self.dimension,
            truncate_dim=options.get("truncate_dim"),
            unit=self._manifest.normalize,
            normalize=options.get("normalize_embeddings", True),
            precision=options.get("precision", "float32"),
            ranges=self._ranges,
        )
        prompt = self._choose_prompt(options.get("prompt_name"), options.get("prompt"))
        return EncodeCall(prompt=prompt, packing=packing, **run_options)

    def _prompt_of(self, role: Role | None, prompt_name: str | None) -> str:
        options: EncodeOptions = {"prompt_name": prompt_name}
        if role is not None:
            check_choice(role, get_args(Role), "role")
            options = with_prompt(options, role, self._manifest.prompts)
        return self._choose_prompt(options["prompt_name"], options.get("prompt"))

    def _choose_prompt(self, prompt_name: str | None, prompt: str | None) -> str:
        if prompt is not None and prompt_name is not None:
            raise InputError("give prompt or prompt_name, not both", parameters=["prompt_name"])
        if prompt is not None:
            return check_text(prompt, "prompt")
        if prompt_name is None:
            return self._manifest.prompts.get(self._manifest.default_prompt, "")
        if check_text(prompt_name, "prompt_name") not in self._manifest.prompts:
            known = ", ".join(self._manifest.prompts) or "none"
            raise InputError(f"{self.name} has no prompt {prompt_name!r}; it has {known}")
        return self._manifest.prompts[prompt_name]

    def _run_chunk(
        self, chunk: list[Any], first: int, call: EncodeCall, progress: Progress | None = None
    ) -> tuple[npt.NDArray[Any], int]:
        tokens = self._tokenize(chunk, first, call.prompt)
        long = tokens.overflowing
        if not long or call.on_overflow == "truncate":
            return call.packing.apply(self._runner.run(tokens, call.batch_size, progress)), len(long)
        if call.on_overflow == "error":
            raise self._overflow_error(long, first, self._unit)
        short = np.setdiff1d(np.arange(len(chunk)), long)
        rows = np.empty((len(chunk), self.dimension), dtype=np.float32)
        if len(short):
            rows[short] = self._runner.run(tokens.choose(short), call.batch_size, progress)
        rows[long] = self._mean_of_windows([chunk[row] for row in long], call)
        if progress:
            progress.advance(len(long))
        return call.packing.apply(rows), 0

    def _mean_of_windows(self, texts: list[str], call: EncodeCall) -> FloatArray:
        """Encode long texts as the means of their windows, weighted by their tokens: ``(n, D)``, not packed."""
        room = self._room(call.prompt)
        spans_of_texts = [self._windows(text, call.prompt, room, 0) for text in texts]
        pieces = [
            text[start:stop] for text, spans in zip(texts, spans_of_texts, strict=True) for start, stop in spans
        ]
        windows = self._tokenize(pieces, 0, call.prompt)
        weights = (windows.lengths - (self.max_length - room)).clip(min=1).astype(np.float32)[:, np.newaxis]
        starts = np.cumsum([0, *map(len, spans_of_texts)])[:-1]
        weighted = self._runner.run(windows, call.batch_size) * weights
        means: FloatArray = np.add.reduceat(weighted, starts)
        means /= np.add.reduceat(weights, starts)
        return unit_rows(means) if self._manifest.normalize else means

    def _room(self, prompt: str) -> int:
        """Return the number of tokens that fit beside special tokens and a prompt.

        Raises:
            InputError: none fits.
        """
        room = self.max_length - len(self._tokenizer.tokenize([prompt]).ids[0])
        if room < 1:
            raise InputError(f"the prompt fills all {self.max_length} tokens of {self.name}")
        return room

    def _windows(self, text: str, prompt: str, size: int, overlap: int, heading: str = "") -> list[Span]:
        room = self._room(prompt)
        if heading:
            taken = len(self._tokenizer.tokenize([heading], prompt=prompt).ids[0]) - (self.max_length - room)
            size = min(size, room - min(taken, room // 2))
            overlap = min(overlap, size - 1)
        most = self.max_length - room + size

        def fits(window: str) -> bool:
            tokens = self._tokenizer.tokenize([window], prompt=prompt)
            return not tokens.overflowing and len(tokens.ids[0]) <= most

        spans = [
            (token.stop - len(token.text.lstrip()), token.stop)  # some tokenizers include the space before a word
            for token in self._spans.find([text], special_tokens=False)[0]
            if token.stop is not None
        ]
        return find_windows(text, spans, size, overlap, fits=fits)

    def _tokenize(self, texts: list[Any], first: int, prompt: str) -> Tokens:
        """Tokenize texts and count unknown tokens; log one line, once for each encoder, if most of these are."""
        tokens = self._tokenizer.tokenize(texts, prompt=prompt, first=first, threads=self._threads)
        unknown = self._tokenizer.unknown_id
        if unknown is None:
            return tokens
        flat, rows = TokenIds.of(tokens.ids).flat, len(tokens.ids)
        count = flat.tolist().count(unknown) if rows == 1 else int(np.count_nonzero(flat == unknown))
        self._unknown += count
        self._total += len(flat) - rows * self._special_count
        # With fewer, the mean share cannot be above this; they are counted quickly.
        if not self._warned_of_unknown and count > _MOSTLY * rows:
            share = float(self._unknown_share(tokens).mean())
            if share > _MOSTLY:
                self._warned_of_unknown = True
                logger.warning(
                    "%s does not cover %.0f %% of the tokens of %d texts, whose embeddings mean little; use a "
                    "model for their language (logged once)",
                    *(self.name, 100 * share, rows),
                )
        return tokens

    def _unknown_share(self, tokens: Tokens) -> FloatArray:
        unknown, special = self._tokenizer.unknown_id, self._tokenizer.special_ids
        if unknown is None:
            return np.zeros(len(tokens.ids), dtype=np.float32)
        return tokens.share(unknown, without=special - {unknown})

    @functools.cached_property
    def _special_count(self) -> int:
        """Number of special tokens in a text."""
        return len(self._tokenizer.tokenize([""]).ids[0])

    @staticmethod
    def _finish(rows: FloatArray, batch: TokenBatch, manifest: Manifest, *, is_bundle: bool) -> FloatArray:
        if rows.ndim == 3:
            rows = pool(rows, batch, manifest.pooling)
        return unit_rows(rows) if manifest.normalize and not is_bundle else rows


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _as_rows(embeddings: npt.ArrayLike, name: str) -> FloatArray:
    try:
        rows = np.asarray(embeddings, dtype=np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"{name} must hold numbers, as encode gives them: {error}") from error
    if rows.ndim == 1:
        rows = rows.reshape(-1, max(1, rows.size))  # an empty list holds no embedding, and not one without numbers
    if rows.ndim != 2:
        raise InputError(f"{name} must be (N, D) or (D,), not {rows.shape}")
    if not np.isfinite(rows).all():
        raise InputError(f"{name} must be finite numbers, but contains NaN or infinity")
    return rows
