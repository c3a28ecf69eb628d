"""The wire format: what protobuf writes is read, what it would reject is rejected."""

from __future__ import annotations

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from embedkit.errors import BundleIntegrityError
from embedkit.runtime.protobuf import encode_bytes, read_fields, read_numbers


def test_fields_of_a_real_message_are_found():
    model = onnx.ModelProto(ir_version=300, producer_name="é", graph=onnx.GraphProto(name="g"))
    content = model.SerializeToString()
    fields = list(read_fields(memoryview(content)))
    assert [field.number for field in fields] == [1, 2, 7]
    assert fields[0].value == 300
    assert fields[1].value == memoryview("é".encode())
    assert b"".join(field.raw for field in fields) == content


def test_fixed_numbers_are_skipped():
    content = b"\x09" + bytes(8) + b"\x15" + bytes(4) + b"\x18\x01"
    assert [field.number for field in read_fields(memoryview(content))] == [1, 2, 3]


@given(st.lists(st.integers(0, 2**63 - 1)))
def test_packed_numbers_are_read(numbers):
    packed = onnx.TensorProto(int64_data=numbers).SerializeToString()  # one field, if there are any
    content = b"".join(bytes(field.value) for field in read_fields(memoryview(packed)))
    assert list(read_numbers(memoryview(content))) == numbers


@given(st.integers(1, 2**29 - 1), st.binary(max_size=300))
def test_bytes_survive(number, payload):
    (field,) = read_fields(memoryview(encode_bytes(number, payload)))
    assert field.number == number
    assert isinstance(field.value, memoryview)
    assert bytes(field.value) == payload


def test_bytes_are_encoded_as_protobuf_does():
    name = "x" * 200
    assert encode_bytes(2, name.encode()) == onnx.ModelProto(producer_name=name).SerializeToString()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x08", "does not end"),
        (b"\x08" + b"\x80" * 10, "does not end"),
        (b"\x0a\x05abc", "declares 5 bytes, 3 remain"),
        (b"\x09\x00", "declares 8 bytes"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "declares 18,446,744,073,709,551,615 bytes"),
        (b"\x0b", "wire type 3"),
        (b"\x0e", "wire type 6"),
        (b"\x00\x01", "number 0"),
        (b"\xf8\xff\xff\xff\xff\x01\x00", "no protobuf field"),
    ],
)
def test_bytes_that_are_no_message_are_refused(content, words):
    with pytest.raises(BundleIntegrityError, match=words):
        list(read_fields(memoryview(content)))


@given(st.binary(max_size=200))
def test_noise_is_read_to_its_end_or_refused(noise):
    try:
        fields = list(read_fields(memoryview(noise)))
    except BundleIntegrityError:
        return
    assert b"".join(field.raw for field in fields) == noise
