"""The base of encoders and cross-encoders: loading, the loop of a call, identity, copies."""

from __future__ import annotations

import functools
import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Self, TypedDict, TypeVar

import numpy as np
import numpy.typing as npt

from embedkit.atomic import expanded
from embedkit.errors import InputError, ModelError, TextOverflowError, shown
from embedkit.progress import Progress
from embedkit.protocols import FloatArray
from embedkit.runtime.arguments import check_count, check_names
from embedkit.runtime.batching import BatchRunner, read_chunks
from embedkit.runtime.bundle import Bundle, read_bundle
from embedkit.runtime.find import find_model
from embedkit.runtime.folder_layout import read_json
from embedkit.runtime.folder_model import (
    DEFAULT_FILE,
    FolderModel,
    read_cross_encoder_folder,
    read_folder,
)
from embedkit.runtime.kernel_backend import KernelBackend, count_weights
from embedkit.runtime.manifest import Manifest
from embedkit.runtime.network import read_network
from embedkit.runtime.numerics import digest_of
from embedkit.runtime.options import CallOptions
from embedkit.runtime.tokenization import PairTokenizer, TokenBatch, Tokenizer, Tokens
from embedkit.threads import available_threads

if TYPE_CHECKING:
    from embedkit.runtime.onnx_backend import OnnxBackend

logger = logging.getLogger("embedkit")

AnyTokenizer = TypeVar("AnyTokenizer", Tokenizer, PairTokenizer)
AnyCall = TypeVar("AnyCall", bound=CallOptions)

_POSITIONS_NAMED = 5


class Origin(NamedTuple):
    """Path and keywords of ``load`` from which other processes can load a model again."""

    source: str
    options: Mapping[str, Any]


class Verification(TypedDict):
    """Result of running the golden texts of a bundle on this machine.

    ``texts`` golden texts (pairs for a cross-encoder) were run; ``same_tokens`` is whether their tokens agree.
    The largest absolute ``difference`` of a value may be ``tolerance``. ``same_bits`` is whether values have the
    bits that the bundle records for the arithmetic in use, or None if it records none. ``passed`` is whether all
    of this is as required.
    """

    passed: bool
    texts: int
    same_tokens: bool
    same_bits: bool | None
    difference: float
    tolerance: float


class TruncationLog:
    """Warns when a model first truncates items; later calls log at level INFO, so searches do not repeat it."""

    def __init__(self) -> None:
        self._level = logging.WARNING

    def add(self, truncated: int, done: int, *, unit: str, max_length: int) -> None:
        """Log one line if items were truncated."""
        if truncated:
            logger.log(self._level, "%d of %d %s were cut to %d tokens", truncated, done, unit, max_length)
            self._level = logging.INFO


class Model(ABC, Generic[AnyTokenizer, AnyCall]):
    """A model on ONNX Runtime or embedkit's own kernel. Create it with :meth:`load`; it is thread-safe.

    It is immutable: a copy is the model itself, and a pickle stores its source. Unpickling loads the model again
    and raises a :class:`ModelError` if it has changed.
    """

    _kind: ClassVar[str]
    _unit: ClassVar[str]
    _label: ClassVar[str]
    _tokenizer_class: type[AnyTokenizer]
    _origin: Origin | None = None

    def __init__(
        self,
        model: Bundle | FolderModel,
        *,
        threads: int | None = None,
        providers: Sequence[str] | None = None,
        max_tokens_per_batch: int | None = None,
        instructions: str | None = None,
    ) -> None:
        check_kind(model.manifest, self._kind)
        providers = None if providers is None else check_names(providers, "providers")
        self._manifest = model.manifest
        self._fingerprint = model.fingerprint
        self._is_bundle = isinstance(model, Bundle)
        self._golden = model.golden if isinstance(model, Bundle) else None
        self._threads = check_count(threads, "threads") or available_threads()
        try:
            self._tokenizer: AnyTokenizer = self._tokenizer_class(model.tokenizer_json, model.manifest.max_length)
        except InputError as error:  # its length, which is not an argument here
            raise ModelError(str(error)) from error
        network = read_network(model.model)
        self._weight_count = None if network is None else count_weights(network)
        kernel = KernelBackend.choose(
            network,
            pairs=self._kind == "cross-encoder",
            threads=threads,
            providers=providers,
            instructions=instructions,
        )
        del network  # its arrays may be copies, and a session needs memory
        if kernel is not None:
            kernel.check(max_length=self.max_length, vocabulary_size=self._tokenizer.vocabulary_size)
        self._backend = kernel or self._open_session(model, threads, providers)
        self._provider, self._numerics = self._backend.provider, self._backend.numerics
        self._instructions = None if kernel is None else kernel.instructions
        self._max_tokens_per_batch = max_tokens_per_batch
        self._shape = self._check_shape(self._backend.width)
        self._runner = self._make_runner(self._backend)
        self._truncation_log = TruncationLog()

    @classmethod
    def load(
        cls,
        source: str | os.PathLike[str],
        *,
        file: str | None = None,
        threads: int | None = None,
        providers: Sequence[str] | None = None,
        max_tokens_per_batch: int | None = None,
        instructions: str | None = None,
    ) -> Self:
        """Load a bundle, or a folder written by sentence-transformers that holds an ONNX graph.

        Args:
            source: a path, which takes precedence and never uses the network; the name of a bundled model;
                or a hub id ``org/name``.
            file: the graph in a sentence-transformers folder, ``onnx/model.onnx`` if None.
            threads: number of compute threads; if None, all processors available to the process (affinity and
                container quota). On a CPU each thread runs its own batches, unless there is only one thread or
                the graph is large (64 MB without the word table); then all threads share a batch.
            providers: ONNX Runtime execution providers in order of preference, or
                ``["EmbedkitExecutionProvider"]``, which runs models of the BERT family that embedkit exported.
                An unavailable provider is an error. If None, embedkit's own where it is the
                fastest (up to BERT-Large; on ARM int8 up to BERT-Base, fp32 up to BERT-Mini), otherwise ONNX
                Runtime's CPU provider.
            max_tokens_per_batch: maximum number of texts or pairs in a batch times the longest of them in tokens;
                if None, 16,384, but 1024 on a CPU, and at most 256 there if threads run their own batches.
            instructions: the instruction set of embedkit's kernel: "amx", "avx512", "avx-vnni", "avx2",
                "neon-i8mm", "neon-dotprod" or "portable". All compute the same bits. None uses the one in the
                environment variable ``EMBEDKIT_INSTRUCTIONS``, or else the fastest of this processor. A named one
                selects the kernel if it supports the model and no provider is named.

        Raises:
            ModelNotFoundError: no model exists under the path, name or id.
            BundleError: the file is damaged, not a bundle, or of a newer format.
            ModelError: the model cannot be used, or is of another kind.
            ProviderError: a provider or the instruction set is not available, or a provider failed to start.
        """
        options: dict[str, Any] = {
            "threads": threads,
            "providers": None if providers is None else check_names(providers, "providers"),
            "max_tokens_per_batch": max_tokens_per_batch,
            "instructions": instructions,
        }
        path, content = read_model(source, kind=cls._kind, file=file)
        try:
            model = cls(content, **options)
        except ModelError as error:
            raise ModelError(f"{path}: {error}") from error
        model._origin = Origin(str(path.resolve()), {"file": file, **options})
        return model

    @property
    def manifest(self) -> Manifest:
        """Description and origin of the model."""
        return self._manifest

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._manifest.name

    @property
    def weight_count(self) -> int | None:
        """Number of weights in the products of its layers, without tables of words; None if it is not recorded."""
        return self._weight_count

    @property
    def source(self) -> str | None:
        """Absolute path from which :meth:`load` read the model; None if it did not."""
        return None if self._origin is None else self._origin.source

    @property
    def fingerprint(self) -> str:
        """Hex SHA-256 of everything that determines the results."""
        return self._fingerprint

    @property
    def max_length(self) -> int:
        """Maximum length of a text or pair in tokens, including special tokens."""
        return self._manifest.max_length

    @property
    def provider(self) -> str:
        """Name of the execution provider: embedkit's own kernel, or the first active one of ONNX Runtime."""
        return self._provider

    @property
    def instructions(self) -> str | None:
        """The instruction set of embedkit's kernel; None where ONNX Runtime runs the model."""
        return self._instructions

    @property
    def numerics(self) -> str:
        """The arithmetic: models with the same fingerprint and numerics compute the same bits on any processor.

        ONNX Runtime does not guarantee this, but its name and version are given here as well.
        """
        return self._numerics

    @property
    def has_golden(self) -> bool:
        """Whether the model has golden texts or pairs for :meth:`verify`, as bundles do."""
        return self._golden is not None

    def verify(self) -> Verification:
        """Run the golden texts or pairs of the bundle and compare with the results stored at export.

        They must agree within the bundle's tolerance, and bit for bit if the bundle records the bits
        of the arithmetic in use (:attr:`numerics`).

        Raises:
            ModelError: the model is not a bundle and has none.
        """
        golden = self._golden
        if golden is None:
            raise ModelError(f"{self.name} is not a bundle and has no golden {self._unit} to verify")
        tokens = self._tokenizer.tokenize(golden.texts)
        rows = self._runner.run(Tokens(golden.token_ids, [], golden.type_ids))
        same = tokens.ids == golden.token_ids and tokens.type_ids == golden.type_ids
        difference = float(np.abs(rows - golden.values).max())
        digest = golden.digests.get(self.numerics)
        same_bits = None if digest is None else digest == digest_of(rows)
        return Verification(
            passed=same and difference <= golden.tolerance and same_bits is not False,
            texts=len(golden.token_ids),
            same_tokens=same,
            same_bits=same_bits,
            difference=difference,
            tolerance=golden.tolerance,
        )

    def _results(
        self, items: Iterable[Any], call: AnyCall, total: int | None = None, unit: str | None = None
    ) -> Generator[npt.NDArray[Any]]:
        """Run items chunk by chunk; truncation is logged in one line, however the stream ends.

        Yields:
            ``(n, ...)`` for each chunk.

        Raises:
            InputError, TextOverflowError: as :meth:`_run_chunk`.
        """
        done = truncated = 0
        unit = unit or self._unit
        try:
            with Progress(self._label, total, unit=unit, enabled=call.show_progress) as progress:
                for chunk in read_chunks(items):
                    rows, cut = self._run_chunk(chunk, done, call, progress)
                    truncated += cut
                    done += len(chunk)
                    yield rows
        finally:
            self._truncation_log.add(truncated, done, unit=unit, max_length=self.max_length)

    @abstractmethod
    def _run_chunk(
        self, chunk: list[Any], first: int, call: AnyCall, progress: Progress | None = None
    ) -> tuple[npt.NDArray[Any], int]:
        """Tokenize and run items, ``first`` of which is the position of the first: results, and how many were cut.

        Raises:
            InputError: an item cannot be tokenized; names its position.
            TextOverflowError: an item is too long and the call forbids truncation.
        """

    def _overflow_error(self, overflowing: Sequence[int], first: int, unit: str) -> TextOverflowError:
        named = ", ".join(f"{unit}[{first + position}]" for position in overflowing[:_POSITIONS_NAMED])
        more = f" and {len(overflowing) - _POSITIONS_NAMED} more" if len(overflowing) > _POSITIONS_NAMED else ""
        return TextOverflowError(
            f"longer than {self.max_length} tokens: {named}{more}; shorten them, or let them be cut with "
            'on_overflow="truncate"',
            parameters=["on_overflow"],
        )

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        if self._origin is None:
            raise ModelError(f"only a model made by {type(self).__name__}.load can be pickled: it is loaded again")
        return _reload, (type(self), self._origin, self.fingerprint, self.name)

    def _make_runner(self, backend: KernelBackend | OnnxBackend) -> BatchRunner:
        return BatchRunner(backend, shape=self._shape, max_tokens_per_batch=self._max_tokens_per_batch)

    @abstractmethod
    def _check_shape(self, width: int | None) -> tuple[int, ...]:
        """Return the shape of one item's result, if a graph with rows of this width declares it."""

    @abstractmethod
    def _outputs(self, model: Bundle | FolderModel) -> Sequence[str]:
        """Names of the graph's output, of which the first that exists is read."""

    def _graph(self, model: Bundle | FolderModel) -> bytes:
        return model.model

    @staticmethod
    @abstractmethod
    def _finish(rows: FloatArray, batch: TokenBatch, manifest: Manifest, *, is_bundle: bool) -> FloatArray:
        """Apply the steps that a folder's graph does not include."""

    def _open_session(
        self, model: Bundle | FolderModel, threads: int | None, providers: Sequence[str] | None
    ) -> OnnxBackend:
        # Importing ONNX Runtime takes half of a cold start, and the kernel does not need it.
        from embedkit.runtime.onnx_backend import OnnxBackend, Session

        session = Session(self._graph(model), outputs=self._outputs(model), threads=threads, providers=providers)
        # Not a method of the model: a cycle would keep a model in memory that nothing uses any more.
        finish = functools.partial(self._finish, manifest=model.manifest, is_bundle=self._is_bundle)
        return OnnxBackend(session, finish=finish, pad_id=self._tokenizer.pad_id)


def _reload(kind: type[Model[Any, Any]], origin: Origin, fingerprint: str, name: str) -> Model[Any, Any]:
    model = kind.load(origin.source, **origin.options)
    if model.fingerprint != fingerprint:
        raise ModelError(f"{origin.source} is not the model that was pickled")
    model._manifest = replace(model._manifest, name=name)  # noqa: SLF001 - a path of the hub's cache names no model
    return model


BUNDLE_FOLDER_KEY = "embedkit_bundle"
"""Key of ``config.json`` in a folder whose ``onnx/model.onnx`` is a bundle, as ``embedkit push`` writes it."""

_LOADERS = {"encoder": "Encoder.load", "cross-encoder": "CrossEncoder.load, or --rerank of a command"}

# The file that identifies a folder of another library, and the function that reads the folder.
_FOLDERS = {
    "encoder": ("modules.json", read_folder),
    "cross-encoder": ("config.json", read_cross_encoder_folder),
}


def read_model(
    source: str | os.PathLike[str], *, kind: str, file: str | None
) -> tuple[Path, Bundle | FolderModel]:
    """Find and read a model: a bundle, a folder with one bundle, or a folder of another library.

    ``kind`` is what a folder of another library should hold, ``file`` the graph to use in a folder. The path is
    for messages.

    Raises:
        ModelNotFoundError, BundleError, ModelError, InputError: the model cannot be found or read.
    """
    marker, read = _FOLDERS[kind]
    path = find_model(source, file=file)
    if not path.is_dir():
        if file is not None:
            raise InputError(f"file={shown(file)} chooses from a folder, and {path} is a file")
        return path, read_bundle(path)
    if file is None and _is_repository(path):
        return path, read_bundle(path / DEFAULT_FILE)
    if (path / marker).exists():
        folder = read(path, file=file)
        if expanded(source) != path:
            # Downloaded: the hub id is more informative than the folder of the cache.
            folder = replace(folder, manifest=replace(folder.manifest, name=str(source)))
        return path, folder
    bundles = sorted(path.glob("*.onnx")) if file is None else [path / file]
    if len(bundles) != 1:
        reason = f"{len(bundles)} .onnx files, of which one has to be chosen" if bundles else "neither"
        raise ModelError(f"{path} should hold one bundle or a {marker}; it has {reason}")
    return path, read_bundle(bundles[0])


def _is_repository(folder: Path) -> bool:
    """Return whether a folder declares that its graph is a bundle."""
    try:
        return BUNDLE_FOLDER_KEY in read_json(folder / "config.json")
    except ModelError:  # the reader of such folders reports it
        return False


def check_kind(manifest: Manifest, wanted: str) -> None:
    """Reject a model of another kind.

    Raises:
        ModelError: the kind differs; names the class that loads it.
    """
    if manifest.kind != wanted:
        raise ModelError(f"{manifest.name} is a model of kind {manifest.kind!r}; use {_LOADERS[manifest.kind]}")
