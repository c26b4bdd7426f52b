"""Conversion of a sample of a data set to bytes and back, without running the writer's code.

The bytes are the length of a JSON text, the text, and the contents of the sample's tensors, arrays
and bytes. The text describes the structure, in the order of the contents.
"""

from __future__ import annotations

import ctypes
import json
import math
import struct
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from detcloud.shared.articles import with_article
from detcloud.shared.errors import DetcloudError

if TYPE_CHECKING:
    from typing_extensions import Buffer

numpy: ModuleType | None
try:
    import numpy
except ImportError:
    numpy = None

_LENGTH = struct.Struct("<I")
_PLAIN = (type(None), bool, int, float, str)
_TUPLE, _LIST, _DICT, _BYTES, _COMPLEX = "tuple", "list", "dict", "bytes", "complex"
_TENSOR, _ARRAY, _SCALAR = "tensor", "array", "scalar"
_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
        *(torch.complex64, torch.complex128),
    )
}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_ARRAY_KINDS = "biufcSUmM"
# Exceptions that damaged bytes may cause. torch raises RuntimeError for an impossible shape.
_FAILURES = (ValueError, TypeError, LookupError, RuntimeError, struct.error)


class UnsupportedSample(DetcloudError):
    """A sample contains a value that a cache cannot store."""


class DamagedSample(ValueError):
    """Bytes are not the output of `encode_sample`."""


def encode_sample(sample: Any) -> bytes:
    """Return the sample as bytes.

    Supported are numbers, strings, bytes, None, CPU tensors, and NumPy arrays and scalars, in
    tuples, lists and dicts of any depth. Raises UnsupportedSample for other types and for
    subclasses.
    """
    return b"".join(encode_pieces(sample))


def encode_pieces(sample: Any) -> list[Buffer]:
    """Return the bytes of a sample in pieces, without copies of tensors.

    Pieces of tensors are the tensors' memory. Supported are numbers, strings, bytes, None, CPU
    tensors, and NumPy arrays and scalars, in tuples, lists and dicts of any depth. Raises
    UnsupportedSample for other types and for subclasses.
    """
    contents: list[Buffer] = []
    try:
        text = json.dumps(_describe(sample, contents, "the sample"), separators=(",", ":")).encode()
    except RecursionError:
        raise UnsupportedSample("the sample's structures lie too deep within each other") from None
    except ValueError as error:
        raise UnsupportedSample(f"the sample has a number that is too long: {error}") from None
    return [_LENGTH.pack(len(text)), text, *contents]


def decode_sample(data: memoryview) -> Any:
    """Return the sample, with a copy of the bytes.

    Raises DamagedSample for bytes that are not the output of `encode_sample`.

    Raises DetcloudError if the sample has NumPy arrays and NumPy is not installed.
    """
    try:
        (length,) = _LENGTH.unpack_from(data)
        start = _LENGTH.size + length
        reader = _Contents(data, start)
        sample = _build(json.loads(bytes(data[_LENGTH.size : start])), reader)
    except _FAILURES as error:
        raise DamagedSample(f"no sample: {error}") from error
    if reader.place != len(data):
        raise DamagedSample(f"a sample of {reader.place} bytes has {len(data)}")
    return sample


def _describe(value: Any, contents: list[Buffer], where: str) -> Any:
    """Return a value in terms of JSON. Append bytes that JSON cannot express to `contents`.

    `where` names the value in errors. Raises UnsupportedSample for values that a cache cannot
    store: types that `encode_sample` does not list, and subclasses.
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind in (tuple, list):
        items = [_describe(item, contents, f"{where}[{i}]") for i, item in enumerate(value)]
        return [_TUPLE if kind is tuple else _LIST, *items]
    if kind is dict:
        return [_DICT, *(_describe_entry(entry, contents, where) for entry in value.items())]
    if kind is torch.Tensor:
        return _describe_tensor(value, contents, where)
    if numpy is not None and (kind is numpy.ndarray or isinstance(value, numpy.generic)):
        return _describe_array(value, contents, where)
    if kind is bytes:
        contents.append(value)
        return [_BYTES, len(value)]
    if kind is complex:
        return [_COMPLEX, value.real, value.imag]
    raise _refusal(value, where)


def _describe_entry(entry: tuple[Any, Any], contents: list[Buffer], where: str) -> list[Any]:
    """Return the description of a dict's entry, a list of the key and the value's description.

    Append the value's bytes to `contents`. `where` names the dict in errors. Raises
    UnsupportedSample unless the key is a string, a number, a bool or None, and for values that a
    cache cannot store.
    """
    key, value = entry
    if type(key) not in _PLAIN:
        raise UnsupportedSample(
            f"{where} has the key {key!r:.80}: a cache holds keys that are strings, numbers or None"
        )
    return [key, _describe(value, contents, f"{where}[{key!r:.80}]")]


def _describe_tensor(tensor: torch.Tensor, contents: list[Buffer], where: str) -> list[Any]:
    """Return the description of a tensor, and append the memory to `contents`.

    Raises UnsupportedSample for sparse tensors, unusual types, and tensors on other devices.
    """
    name = _DTYPE_NAMES.get(tensor.dtype)
    if name is None or tensor.layout is not torch.strided or tensor.device.type != "cpu":
        raise UnsupportedSample(
            f"{where} is a {tensor.layout} tensor of {tensor.dtype} on {tensor.device}: a cache "
            "holds dense tensors of the CPU; convert it with .to_dense() or .cpu() in the function"
        )
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    contents.append(_memory_of(dense) if dense.nbytes else b"")
    return [_TENSOR, name, *dense.shape]


def _memory_of(tensor: torch.Tensor) -> Buffer:
    """Return the memory of a dense tensor.

    The content is valid as long as the tensor is unchanged.
    """
    memory: Any = (ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())
    # Without a reference, a temporary contiguous tensor would be freed before the read.
    memory.owner = tensor
    view: Buffer = memory
    return view


def _describe_array(array: Any, contents: list[Buffer], where: str) -> list[Any]:
    """Return the description of a NumPy array or scalar, and append the bytes to `contents`.

    Raises UnsupportedSample for arrays of objects and records.
    """
    if array.dtype.kind not in _ARRAY_KINDS:
        raise UnsupportedSample(
            f"{where} is an array of {array.dtype}: a cache holds arrays of numbers, strings and "
            "dates; convert it in the function, for instance with .astype(numpy.float32)"
        )
    contents.append(array.tobytes())
    if isinstance(array, _numpy().generic):
        return [_SCALAR, array.dtype.str]
    return [_ARRAY, array.dtype.str, *array.shape]


def _refusal(value: Any, where: str) -> UnsupportedSample:
    """Return the error for a value of a type that a cache cannot store, with advice.

    `where` names the value.
    """
    kind = with_article(f"{type(value).__module__}.{type(value).__qualname__}")
    if hasattr(value, "getbands"):
        remedy = "convert the image in the function, for instance with numpy.asarray(image)"
    elif isinstance(value, (torch.Tensor, tuple, list, dict, int, float, str, bytes)):
        remedy = "give the plain type in the function; that of the subclass would be lost"
    else:
        remedy = (
            "give tensors, arrays, numbers, strings, bytes, and tuples, lists and dictionaries of "
            "them"
        )
    return UnsupportedSample(f"{where} is {kind}, which a cache cannot hold: {remedy}")


class _Contents:
    """A reader of the contents that follow a sample's text."""

    def __init__(self, data: memoryview, place: int) -> None:
        self._data, self.place = data, place

    def read(self, size: int) -> bytearray:
        """Return a writable copy of the next `size` bytes.

        Raises ValueError if bytes are missing.
        """
        end = self.place + size
        if size < 0 or end > len(self._data):
            raise ValueError(f"{size} bytes are missing")
        taken = bytearray(self._data[self.place : end])
        self.place = end
        return taken


def _build(described: Any, contents: _Contents) -> Any:
    """Return the value of a description, with bytes from `contents`.

    Damaged descriptions raise an exception of _FAILURES.
    """
    if type(described) is not list:
        return described
    kind, *rest = described
    return _BUILDERS[kind](rest, contents)


def _build_dict(rest: list[Any], contents: _Contents) -> dict[Any, Any]:
    """Return the dict that a description lists."""
    return {key: _build(value, contents) for key, value in rest}


def _build_tensor(rest: list[Any], contents: _Contents) -> torch.Tensor:
    """Return the tensor that a description lists, with a copy of the bytes."""
    name, *shape = rest
    dtype, count = _DTYPES[name], math.prod(shape)
    data = contents.read(count * dtype.itemsize)
    if not data:
        # torch takes no empty buffer.
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype).view(shape)


def _build_array(rest: list[Any], contents: _Contents) -> Any:
    """Return the NumPy array that a description lists, with a copy of the bytes."""
    name, *shape = rest
    dtype = _array_dtype(name)
    data = contents.read(math.prod(shape) * dtype.itemsize)
    return _numpy().ndarray(shape, dtype, data)


def _build_scalar(rest: list[Any], contents: _Contents) -> Any:
    """Return the NumPy number, text or date that a description lists."""
    dtype = _array_dtype(rest[0])
    return _numpy().ndarray((), dtype, contents.read(dtype.itemsize))[()]


def _array_dtype(name: Any) -> Any:
    """Return the NumPy type of this name. Raises ValueError for a type of objects."""
    dtype = _numpy().dtype(str(name))
    if dtype.kind not in _ARRAY_KINDS:
        raise ValueError(f"arrays of {name} are not cached")
    return dtype


def _numpy() -> ModuleType:
    """Return the module numpy. Raises DetcloudError if it is not installed."""
    if numpy is None:
        raise DetcloudError("the cached data set has NumPy's arrays: install numpy to read it")
    return numpy


_BUILDERS: dict[str, Callable[[list[Any], _Contents], Any]] = {
    _TUPLE: lambda rest, contents: tuple(_build(item, contents) for item in rest),
    _LIST: lambda rest, contents: [_build(item, contents) for item in rest],
    _DICT: _build_dict,
    _BYTES: lambda rest, contents: bytes(contents.read(rest[0])),
    _COMPLEX: lambda rest, contents: complex(*rest),
    _TENSOR: _build_tensor,
    _ARRAY: _build_array,
    _SCALAR: _build_scalar,
}
