"""A process of an :class:`~embedkit.runtime.pool.EncoderPool`: loads the model, encodes texts, reports errors.

It exchanges frames (see :mod:`~embedkit.child`). The first frame holds ``source`` and the keyword
arguments of ``Encoder.load``; the reply is ``fingerprint``. Each request then holds ``texts``, the position
``first`` of the first of them and ``options``; the reply is the rows, with ``dtype``, ``shape`` and the number of
``truncated`` texts. Either reply can instead be an ``error``, its ``arguments`` and ``parameters``. The process
ends at the end of its input.
"""

from __future__ import annotations

from typing import Any, BinaryIO

from embedkit.child import describe_error, parent, read_frame, write_frame
from embedkit.errors import EmbedkitError
from embedkit.runtime.encoder import Encoder


def main() -> None:
    """Reply until the input ends, or the reader has closed the pipe."""
    with parent() as (requests, answers):
        _serve(requests, answers)


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    wanted, _ = read_frame(requests)
    try:
        encoder = Encoder.load(wanted["source"], **wanted["options"])
    except EmbedkitError as error:
        write_frame(answers, describe_error(error))
        return
    write_frame(answers, {"fingerprint": encoder.fingerprint})
    while True:
        request, _ = read_frame(requests)
        write_frame(answers, *_answer(encoder, request))


def _answer(encoder: Encoder, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    try:
        rows, truncated = encoder.encode_chunk(request["texts"], request["first"], **request["options"])
    except EmbedkitError as error:
        return describe_error(error), b""
    return {"dtype": rows.dtype.str, "shape": rows.shape, "truncated": truncated}, rows.tobytes()
