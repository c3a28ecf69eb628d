"""Multiprocess encoding with the results of a single process, for machines with many processors."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple, Self, Unpack

import numpy as np
import numpy.typing as npt

from embedkit.child import Child
from embedkit.errors import InputError, ModelError, WorkerError
from embedkit.progress import Progress
from embedkit.runtime.arguments import check_count, check_iterable
from embedkit.runtime.batching import read_chunks
from embedkit.runtime.model import Origin, TruncationLog
from embedkit.runtime.options import EncodeOptions, with_prompt
from embedkit.threads import available_threads, most_processes

if TYPE_CHECKING:
    from embedkit.runtime.encoder import Encoder

_PARTS_PER_PROCESS = 2


class EncoderPool:
    """Encodes with several processes; a context manager, from :meth:`~embedkit.runtime.encoder.Encoder.pool`.

    Each process loads the model and encodes chunks of 4096 texts (or about 4 million characters), as a single
    process would in sequence, so the embeddings are identical to the bit. A pool pays off from about ten thousand
    texts. The processes exit with the ``with`` block, immediately if an error or Ctrl-C ends it, and
    when this process ends for any reason.

    Args:
        encoder: the encoder to replicate; validates the keyword arguments.
        origin: path from which the processes load the model.
        processes: number of processes, at most eight for each available processor; if None, one for each.
        threads: threads per process, of which at most eight for each available processor are used; if None, the
            available processors are divided among the processes.

    Attributes:
        processes: number of processes.
        threads: threads per process.
        source: absolute path from which the processes load the model.
        name, fingerprint, numerics, dimension, max_length, manifest: as those of the encoder, which the processes
            load with its options.

    Raises:
        InputError: a number is invalid.
        ModelError: the model at ``origin`` has changed, or a process failed to start.
        WorkerError: no process or thread can be started on this system, by a frozen program, or at exit.
    """

    def __init__(
        self, encoder: Encoder, origin: Origin, processes: int | None = None, threads: int | None = None
    ) -> None:
        self.processes = check_count(processes, "processes", most=most_processes()) or available_threads()
        asked = check_count(threads, "threads") or max(1, available_threads() // self.processes)
        self.threads = min(asked, most_processes())
        self.source = origin.source
        self.name, self.manifest = encoder.name, encoder.manifest
        self.fingerprint, self.numerics = encoder.fingerprint, encoder.numerics
        self.dimension, self.max_length = encoder.dimension, encoder.max_length
        self._encoder = encoder
        self._truncation_log = TruncationLog()
        self._closed = False
        self._submitting = threading.Lock()
        self._workers: list[_Worker] = []
        # Ctrl-C can leave a lock of a `ThreadPoolExecutor` or a `Future` locked, which are written in Python; its
        # threads would then wait for it forever. This queue is written in C.
        self._requests: SimpleQueue[_Request | None] = SimpleQueue()
        self._askers: list[threading.Thread] = []
        try:
            for _ in range(self.processes):
                self._workers.append(_Worker(origin, self.threads))
            for worker in self._workers:
                worker.wait_for(encoder.fingerprint)
                self._askers.append(self._start_asker(worker))
        except BaseException:
            self._end(at_once=True)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._end(at_once=kind is not None)

    def close(self) -> None:
        """Stop the processes after their current chunk; called at the end of a ``with`` block."""
        self._end(at_once=False)

    def encode(self, texts: str | Iterable[str], **options: Unpack[EncodeOptions]) -> npt.NDArray[Any]:
        """:meth:`Encoder.encode <embedkit.runtime.encoder.Encoder.encode>` with several processes.

        Raises:
            InputError, TextOverflowError: as there.
            ModelError: a process has exited.
        """
        if isinstance(texts, str) or getattr(texts, "ndim", None) == 0:
            return self._encoder.encode(texts, **options)  # one text, too small to distribute
        form = self._encoder.encode([], **options)
        listed = list(check_iterable(texts))
        embeddings = np.empty((len(listed), form.shape[1]), dtype=form.dtype)
        done = 0
        for rows in self._stream(listed, options, len(listed)):
            embeddings[done : done + len(rows)] = rows
            done += len(rows)
        return embeddings

    def encode_batches(self, texts: Iterable[str], **options: Unpack[EncodeOptions]) -> Iterator[npt.NDArray[Any]]:
        """:meth:`Encoder.encode_batches <embedkit.runtime.encoder.Encoder.encode_batches>` with several processes.

        Two chunks per process are read ahead, so memory is bounded.

        Raises:
            InputError, TextOverflowError: as there.
            ModelError: a process has exited.
        """
        texts = check_iterable(texts)
        self._encoder.encode([], **options)  # report an invalid keyword immediately
        return self._stream(texts, options)

    def encode_query(self, texts: str | Iterable[str], **options: Unpack[EncodeOptions]) -> npt.NDArray[Any]:
        """:meth:`encode` with the model's prompt for queries, if it has one and none is given."""
        return self.encode(texts, **with_prompt(options, "query", self.manifest.prompts))

    def encode_document(self, texts: str | Iterable[str], **options: Unpack[EncodeOptions]) -> npt.NDArray[Any]:
        """:meth:`encode` with the model's prompt for documents, if it has one and none is given."""
        return self.encode(texts, **with_prompt(options, "document", self.manifest.prompts))

    def _stream(
        self, texts: Iterable[str], options: EncodeOptions, total: int | None = None
    ) -> Iterator[npt.NDArray[Any]]:
        """Yield the rows of each chunk in order; the number of pending chunks is limited."""
        waiting: deque[_Request] = deque()
        done = truncated = 0
        progress = Progress("encode", total, unit="texts", enabled=options.get("show_progress_bar"))
        try:
            with progress:
                for part in self._answers(texts, options, waiting):
                    truncated += part.truncated
                    done += len(part.rows)
                    progress.advance(len(part.rows))
                    yield part.rows
        finally:
            for request in waiting:
                request.cancelled = True
            self._truncation_log.add(truncated, done, unit="texts", max_length=self.max_length)

    def _answers(self, texts: Iterable[str], options: EncodeOptions, waiting: deque[_Request]) -> Iterator[_Part]:
        if self._closed:
            raise _closed_error()
        first = 0
        for part in read_chunks(texts):
            waiting.append(_Request(part, first, options))
            self._submit(waiting[-1])
            first += len(part)
            if len(waiting) >= _PARTS_PER_PROCESS * self.processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def _submit(self, request: _Request) -> None:
        with self._submitting:
            if self._closed:
                raise _closed_error()
            self._requests.put(request)

    def _start_asker(self, worker: _Worker) -> threading.Thread:
        asker = threading.Thread(target=self._ask, args=(worker,), daemon=True)
        try:
            asker.start()
        except RuntimeError as error:  # at the limit of threads, and since Python 3.12 in callbacks of atexit
            raise WorkerError(f"a pool needs threads: {error}; encode without a pool") from error
        return asker

    def _ask(self, worker: _Worker) -> None:
        """Pass requests on to a worker until the pool is closed; runs in a thread."""
        while (request := self._requests.get()) is not None:
            if not request.cancelled:
                request.answers.put(_closed_error() if self._closed else worker.encode(request))

    def _end(self, *, at_once: bool) -> None:
        with self._submitting:  # no request comes after the end of the queue
            self._closed = True
        for worker in self._workers:
            worker.child.dismiss(at_once=at_once)
            self._requests.put(None)
        if not at_once:
            for asker in self._askers:
                asker.join()
        for worker in self._workers:
            worker.child.close()


class _Part(NamedTuple):
    """Rows of one chunk, and the number of truncated texts."""

    rows: npt.NDArray[Any]
    truncated: int


class _Request:
    """A chunk to encode, and its answer."""

    def __init__(self, texts: Sequence[str], first: int, options: EncodeOptions) -> None:
        self.texts, self.first, self.options = texts, first, options
        self.cancelled = False
        self.answers: SimpleQueue[_Part | Exception] = SimpleQueue()

    def result(self) -> _Part:
        """Wait for the answer, and raise it if it is an error."""
        answer = self.answers.get()
        if isinstance(answer, Exception):
            raise answer
        return answer


class _Worker:
    """Client side of a process of :mod:`~embedkit.runtime.pool_worker`."""

    def __init__(self, origin: Origin, threads: int) -> None:
        self.child = Child("embedkit.runtime.pool_worker", _ended, {"RAYON_NUM_THREADS": str(threads)})
        self.child.send({"source": origin.source, "options": {**origin.options, "threads": threads}})

    def wait_for(self, fingerprint: str) -> None:
        """Wait until the worker has loaded the model, which must have this fingerprint."""
        answer, _ = self.child.receive()
        if answer["fingerprint"] != fingerprint:
            raise ModelError("the model's file has changed since it was loaded; load it again")

    def encode(self, request: _Request) -> _Part | Exception:
        """Encode a chunk; an error is returned, for the thread that waits for the answer."""
        texts, first = request.texts, request.first
        try:
            self.child.send({"texts": _as_plain(texts, first), "first": first, "options": request.options})
            answer, content = self.child.receive()
            rows = np.frombuffer(content, dtype=answer["dtype"]).reshape(answer["shape"])
            return _Part(rows.copy(), answer["truncated"])  # writable for the caller
        except Exception as error:  # noqa: BLE001 - raised by `_Request.result`
            return error


def _closed_error() -> InputError:
    return InputError("this pool is closed; make another with Encoder.pool")


def _ended(code: int) -> ModelError:
    return ModelError(
        f"a process of the pool has ended with exit code {code}; if its memory was too little (-9), use fewer "
        "processes"
    )


def _as_plain(texts: Sequence[object], first: int) -> Sequence[object]:
    for position, text in enumerate(texts, first):
        if not isinstance(text, str):
            raise InputError(f"texts[{position}] is {type(text).__name__}, expected str")
    return texts
