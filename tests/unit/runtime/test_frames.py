"""Frames: one process reads what another writes, and notices its end."""

from __future__ import annotations

import io

import pytest

from embedkit.child import read_frame, write_frame


def test_headers_and_bytes_survive():
    stream = io.BytesIO()
    headers = [{"texts": ["é", "\ud800", "a\n"], "first": 2**40}, {}]
    write_frame(stream, headers[0], b"\x00\n\xff")
    write_frame(stream, headers[1])
    stream.seek(0)
    assert read_frame(stream) == (headers[0], b"\x00\n\xff")
    assert read_frame(stream) == (headers[1], b"")


@pytest.mark.parametrize("length", [0, 3, 16, 20, 29])
def test_a_stream_that_ends_early_is_an_error(length):
    stream = io.BytesIO()
    write_frame(stream, {"a": 1}, b"12345678")
    with pytest.raises(EOFError):
        read_frame(io.BytesIO(stream.getvalue()[:length]))
