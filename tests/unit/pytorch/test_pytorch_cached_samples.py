"""Encoding of samples as bytes: lossless for supported types, refused for all other types."""

import shutil
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from detcloud.pytorch.data_layer.sample import (
    DamagedSample,
    UnsupportedSample,
    decode_sample,
    encode_pieces,
    encode_sample,
)
from tests.conftest import require
from tests.unit.pytorch.squares import open_cached

Pair = namedtuple("Pair", "a b")


def round_trip(sample: Any) -> Any:
    return decode_sample(memoryview(encode_sample(sample)))


plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
keys = st.text() | st.integers() | st.booleans() | st.none()
nested = st.recursive(
    plain | st.binary() | st.complex_numbers(allow_nan=False),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(keys, inner),
    max_leaves=12,
)


@given(nested)
def test_plain_structures_survive_the_cache(sample: Any) -> None:
    decoded = round_trip(sample)
    assert decoded == sample
    assert repr(decoded) == repr(sample)


DTYPES = ["bool", "uint8", "int64", "float16", "bfloat16", "float32", "float64", "complex64"]


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_cached_tensors_are_equal_and_writable(name: str, shape: tuple[int, ...]) -> None:
    tensor = (torch.arange(6)[: 6 if shape else 1]).to(getattr(torch, name))
    tensor = tensor[:0].reshape(shape) if 0 in shape else tensor.reshape(shape)
    sample = {"x": (tensor, 3)}
    decoded = round_trip(sample)["x"][0]
    assert (decoded.dtype, decoded.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(decoded, tensor)
    decoded.zero_()
    assert torch.equal(round_trip(sample)["x"][0], tensor)


def test_views_of_tensors_are_stored_by_value() -> None:
    turned = torch.arange(6).reshape(2, 3).T
    assert torch.equal(round_trip(turned), turned)
    conjugate = torch.tensor([1 + 2j]).conj()
    assert torch.equal(round_trip(conjugate), conjugate)
    assert not round_trip(torch.ones(1, requires_grad=True)).requires_grad


@pytest.mark.parametrize(
    "array",
    [
        numpy.arange(6, dtype=">f4").reshape(2, 3).T,
        numpy.array(["a", "bcd"]),
        numpy.array([b"a"]),
        numpy.array(5),
        numpy.zeros((0, 2), dtype=numpy.int8),
        numpy.array(["2026-01-02"], dtype="datetime64[D]"),
    ],
)
def test_cached_arrays_are_equal_and_writable(array: Any) -> None:
    decoded = round_trip([array])[0]
    assert (decoded.dtype, decoded.shape) == (array.dtype, array.shape)
    assert numpy.array_equal(decoded, array)
    assert decoded.flags.writeable


def test_scalars_of_numpy_keep_their_type() -> None:
    for scalar in (numpy.int64(7), numpy.float32(0.5), numpy.bool_(True)):
        decoded = round_trip((scalar,))[0]
        assert decoded == scalar
        assert type(decoded) is type(scalar)


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (Pair(1, 2), "is a .*Pair, which a cache cannot hold: give the plain type"),
        ({"a": OrderedDict()}, r"the sample\['a'\] is a collections.OrderedDict, .* plain type"),
        (torch.nn.Parameter(torch.ones(1)), "Parameter, .* plain type"),
        (torch.eye(2).to_sparse(), "a cache holds dense tensors"),
        (numpy.array([object()]), "array of object: a cache holds arrays of numbers"),
        ({(1, 2): 3}, "keys that are strings, numbers or None"),
        ({1}, "is a builtins.set, .* give tensors, arrays"),
        (Path("x"), "give tensors, arrays"),
        ([10**5000], "a number that is too long"),
    ],
)
def test_unsupported_sample_types_are_refused(sample: Any, message: str) -> None:
    with pytest.raises(UnsupportedSample, match=message):
        encode_sample(sample)


def test_an_image_is_refused_with_a_remedy() -> None:
    image: Any = require("PIL.Image").new("RGB", (2, 2))
    with pytest.raises(UnsupportedSample, match=r"the sample\[1\] is a PIL.Image.Image, .*asarray"):
        encode_sample((1, image))


def test_too_deep_structures_are_refused() -> None:
    sample: list[Any] = []
    for _ in range(5000):
        sample = [sample]
    with pytest.raises(UnsupportedSample, match="too deep"):
        encode_sample(sample)


def forged_bytes(text: str, content: bytes = b"") -> bytes:
    return len(text).to_bytes(4, "little") + text.encode() + content


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x09\x00\x00\x00{}",
        forged_bytes("[") + b"x",
        forged_bytes('["pickle",1]'),
        forged_bytes("[]"),
        forged_bytes('["tensor","float32",4]', b"\0" * 15),
        forged_bytes('["tensor","float32",-2,-2]', b"\0" * 16),
        forged_bytes('["tensor","object",1]', b"\0" * 8),
        forged_bytes('["array","|O",1]', b"\0" * 8),
        forged_bytes('["scalar","|O"]', b"\0" * 8),
        forged_bytes('["array","<f4",1099511627776]', b"\0" * 8),
        forged_bytes('["bytes",-4]', b"abcd"),
        forged_bytes("1", b"left over"),
        forged_bytes("[" * 100_000 + "]" * 100_000),
    ],
)
def test_forged_sample_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(DamagedSample):
        decode_sample(memoryview(data))


def test_samples_in_shared_memory_are_written_before_the_next_sample(
    tmp_path: Path,
) -> None:
    class OneBuffer:
        """Data set that refills a shared tensor for each sample."""

        buffer = torch.zeros(4)

        def __len__(self) -> int:
            return 40

        def __getitem__(self, number: int) -> torch.Tensor:
            return self.buffer.fill_(number)

    folder = {"type": "shared_fs", "host_storage_path": str(tmp_path)}
    for workers in (0, 1):
        dataset = open_cached(folder, OneBuffer(), num_workers=workers)
        assert [int(dataset[number].sum()) // 4 for number in range(40)] == list(range(40))
        shutil.rmtree(tmp_path / "squares")


def test_copy_of_a_transposed_tensor_lives_until_the_write() -> None:
    # A transposed tensor is copied to be contiguous, and only the pieces refer to the copy.
    pieces = encode_pieces(torch.arange(6.0).view(2, 3).T)
    assert bytes(pieces[-1]) == torch.tensor([0.0, 3, 1, 4, 2, 5]).numpy().tobytes()
