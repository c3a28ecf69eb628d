"""Messages between two processes through a pipe: a JSON header followed by bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, BinaryIO

_SIZES = struct.Struct("<QQ")


def write_frame(stream: BinaryIO, header: Mapping[str, Any], payload: bytes = b"") -> None:
    """Send a header that JSON can represent, and bytes.

    Raises:
        OSError: the reader has closed the pipe.
    """
    text = json.dumps(header).encode("ascii")  # a lone surrogate is sent as its escape
    stream.write(_SIZES.pack(len(text), len(payload)) + text)
    stream.write(payload)
    stream.flush()


def read_frame(stream: BinaryIO) -> tuple[dict[str, Any], bytes]:
    """Wait for a header and its bytes.

    Raises:
        EOFError: the other process has ended.
    """
    text_bytes, payload_bytes = _SIZES.unpack(_read(stream, _SIZES.size))
    header: dict[str, Any] = json.loads(_read(stream, text_bytes))
    return header, _read(stream, payload_bytes)


def _read(stream: BinaryIO, count: int) -> bytes:
    content = stream.read(count)
    if len(content) < count:
        raise EOFError("the other process has ended")
    return content
