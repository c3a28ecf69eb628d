"""The part of the protobuf wire format that a bundle needs: fields of a message, in and out.

Source: https://protobuf.dev/programming-guides/encoding/. Groups, which ONNX never had, are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from embedkit.errors import BundleIntegrityError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LARGEST_NUMBER = 2**29 - 1
# In one message. Graphs of a hundred layers have some thousand; a field of no bytes takes a hundred here.
_MOST_FIELDS = 100_000


class Field(NamedTuple):
    """One field of a message.

    Attributes:
        number: field number of the schema.
        value: an int for a varint, the payload otherwise (a string, a message, packed or fixed numbers).
        raw: the complete field of the message, including tag and length.
    """

    number: int
    value: int | memoryview
    raw: memoryview


def read_fields(message: memoryview) -> Iterator[Field]:
    """Walk the fields of one message, not entering them.

    Raises:
        BundleIntegrityError: the bytes are no message, or end too early, or hold more than 100,000 fields.
    """
    position = count = 0
    while position < len(message):
        start, count = position, count + 1
        if count > _MOST_FIELDS:
            raise BundleIntegrityError(f"a message has more than {_MOST_FIELDS:,} fields")
        tag, position = _read_varint(message, position)
        number, kind = tag >> 3, tag & 7
        if not 1 <= number <= _LARGEST_NUMBER:
            raise BundleIntegrityError(f"no protobuf field can have the number {number} (at byte {start})")
        value: int | memoryview
        if kind == _VARINT:
            value, position = _read_varint(message, position)
        else:
            length, position = _read_length(message, position, kind)
            if length > len(message) - position:
                raise BundleIntegrityError(
                    f"the field at byte {start} declares {length:,} bytes, {len(message) - position:,} are there"
                )
            value = message[position : position + length]
            position += length
        yield Field(number, value, message[start:position])


def read_numbers(packed: memoryview) -> Iterator[int]:
    """The unsigned numbers of a packed field.

    Raises:
        BundleIntegrityError: the last number does not end.
    """
    position = 0
    while position < len(packed):
        number, position = _read_varint(packed, position)
        yield number


def encode_bytes(number: int, payload: bytes) -> bytes:
    """One length-delimited field: a string, bytes or a message."""
    return _encode_varint(number << 3 | _BYTES) + _encode_varint(len(payload)) + payload


def _read_length(message: memoryview, position: int, kind: int) -> tuple[int, int]:
    if kind == _BYTES:
        return _read_varint(message, position)
    if kind == _FIXED64:
        return 8, position
    if kind == _FIXED32:
        return 4, position
    raise BundleIntegrityError(f"wire type {kind} before byte {position} is not used by ONNX")


def _read_varint(message: memoryview, position: int) -> tuple[int, int]:
    """The unsigned number at ``position`` (at most 10 bytes, 7 bits each) and where it ends."""
    if position < len(message) and message[position] < 0x80:  # most are: tags, and lengths of names
        return message[position], position + 1
    value = 0
    for index, byte in enumerate(message[position : position + 10]):
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value, position + index + 1
    raise BundleIntegrityError(f"the number at byte {position} does not end")


def _encode_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)
