"""Communication with the other workers of a server, over sockets in a private folder."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import orjson

Answers = Mapping[str, Callable[[], Awaitable[Any]]]

_LARGEST_BYTES = 2**24


class Siblings:
    """Answers questions of other workers, and asks them.

    Args:
        folder: contains a socket for each worker; None if there are no others.
        own: number of this worker.

    Attributes:
        folder: as given.
    """

    def __init__(self, folder: Path | None = None, own: int = 0) -> None:
        self.folder, self._own = folder, f"worker-{own}"
        self._server: asyncio.Server | None = None

    async def answer(self, answers: Answers) -> None:
        """Answer questions from now on.

        Args:
            answers: question -> function that computes its answer, serialisable as JSON.
        """
        if self.folder is None:
            return

        async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, EOFError):
                question = (await reader.readuntil()).decode().strip()
                writer.write(orjson.dumps(await answers[question]()))
                await writer.drain()
            writer.close()

        path = self.folder / self._own
        path.unlink(missing_ok=True)  # left by the worker that this one replaces
        self._server = await asyncio.start_unix_server(respond, path)

    async def ask(self, question: str) -> list[Any]:
        """Return the answers of all other running workers."""
        if self.folder is None:
            return []
        others = [path for path in sorted(self.folder.glob("worker-*")) if path.name != self._own]
        found = await asyncio.gather(*(_ask(path, question) for path in others))
        return [answer for answer in found if answer is not None]

    def close(self) -> None:
        """Stop answering."""
        if self._server is not None and self.folder is not None:
            self._server.close()
            (self.folder / self._own).unlink(missing_ok=True)


async def _ask(path: Path, question: str) -> Any:
    """Return one worker's answer; None if it has exited."""
    try:
        reader, writer = await asyncio.open_unix_connection(path, limit=_LARGEST_BYTES)
        writer.write(f"{question}\n".encode())
        content = await reader.read()
        writer.close()
    except OSError:
        return None
    return orjson.loads(content) if content else None
