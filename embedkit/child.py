"""A child process that runs a module of embedkit, and the frames exchanged with it: a JSON header and bytes."""

from __future__ import annotations

import contextlib
import json
import operator
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any, BinaryIO

from embedkit import errors
from embedkit.errors import EmbedkitError, WorkerError

# multiprocessing would import the caller's script again, and `-m` would search the current folder first. This
# finds embedkit where the caller found it.
_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {module} import main; sys.exit(main())"
_PATIENCE_SECONDS = 5.0


def python_command(module: str) -> list[str]:
    """Return the command that runs ``main`` of a module of embedkit, and no code of the current folder.

    Raises:
        WorkerError: the program is frozen and contains Python without its command.
    """
    if not sys.executable or getattr(sys, "frozen", False):  # the executable is the caller's program
        raise WorkerError("a frozen program cannot start processes of embedkit")
    return [sys.executable, "-P", "-c", _START.format(module=module), json.dumps(sys.path)]


class Child:
    """Starts a process and exchanges frames with it; the parent handles Ctrl-C and stops it.

    Args:
        module: full name of a module with a function ``main``.
        ended: returns the error to raise when the process has exited early, given its exit code.
        environment: environment variables, in addition to those of this process.
        messages: a file for what the process writes to stderr; None is the stderr of this process.

    Raises:
        WorkerError: no process can be started: the system refuses, or the program is frozen and contains Python
            without its command.
    """

    def __init__(
        self,
        module: str,
        ended: Callable[[int], EmbedkitError],
        environment: Mapping[str, str] | None = None,
        *,
        messages: IO[str] | None = None,
    ) -> None:
        self._ended = ended
        command = python_command(module)
        try:
            self.process = subprocess.Popen(  # noqa: S603 - ourselves
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=messages,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        except (OSError, RuntimeError) as error:  # the latter while the interpreter exits
            raise WorkerError(f"no process can be started: {error}") from error

    def send(self, header: Mapping[str, Any]) -> None:
        """Send a request."""
        # Reading shows whether the process has exited, and why.
        with contextlib.suppress(BrokenPipeError):
            write_frame(self._pipe("stdin"), header)

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """Wait for a reply.

        Raises:
            EmbedkitError: the one that the process has sent, or that of ``ended``.
        """
        try:
            header, content = read_frame(self._pipe("stdout"))
        except EOFError:
            raise self._ended(self.process.wait()) from None
        if "error" in header:
            raise _as_error(header)
        return header, content

    def dismiss(self, *, at_once: bool) -> None:
        """Ask the process to stop."""
        if at_once:
            self.process.kill()
        with contextlib.suppress(OSError):
            self._pipe("stdin").close()

    def close(self) -> None:
        """Wait for the process to exit."""
        try:
            self.process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._pipe("stdout").close()

    def _pipe(self, name: str) -> BinaryIO:
        pipe: BinaryIO = getattr(self.process, name)
        return pipe


@contextlib.contextmanager
def parent() -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Yield the pipes of requests and of replies, in the child; it ends when the parent has closed one of them."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    if sys.stderr is None:  # closed by the parent; otherwise the next file would have its descriptor
        os.open(os.devnull, os.O_WRONLY)
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with frames
    with contextlib.suppress(EOFError, BrokenPipeError), answers:
        yield requests, answers


def describe_error(error: EmbedkitError) -> dict[str, Any]:
    """Return the frame of an error, which :meth:`Child.receive` raises again."""
    return {"error": type(error).__name__, "arguments": error.args, "parameters": error.parameters}


def _as_error(header: Mapping[str, Any]) -> EmbedkitError:
    error: EmbedkitError = getattr(errors, header["error"])(*header["arguments"])
    error.parameters = tuple(header["parameters"])
    return error


_SIZES = struct.Struct("<QQ")


def write_frame(stream: BinaryIO, header: Mapping[str, Any], payload: bytes = b"") -> None:
    """Send a header that JSON can represent, and bytes.

    Raises:
        OSError: the reader has closed the pipe.
    """
    # A lone surrogate is sent as its escape, and numpy's numbers and flags as Python's.
    text = json.dumps(header, default=operator.methodcaller("tolist")).encode("ascii")
    stream.write(_SIZES.pack(len(text), len(payload)) + text)
    stream.write(payload)
    stream.flush()


def read_frame(stream: BinaryIO) -> tuple[dict[str, Any], bytes]:
    """Wait for a header and its bytes.

    Raises:
        EOFError: the worker process exited.
    """
    text_bytes, payload_bytes = _SIZES.unpack(_read(stream, _SIZES.size))
    header: dict[str, Any] = json.loads(_read(stream, text_bytes))
    return header, _read(stream, payload_bytes)


def _read(stream: BinaryIO, count: int) -> bytes:
    content = stream.read(count)
    if len(content) < count:
        raise EOFError("the worker process exited")
    return content
