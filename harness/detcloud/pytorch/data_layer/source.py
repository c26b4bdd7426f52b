"""The samples of a user's data set in the form of a cache: in order, seeded, as bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

from detcloud.pytorch.data import derived_seed
from detcloud.pytorch.data_layer.sample import UnsupportedSample, encode_pieces, encode_sample
from detcloud.pytorch.generators import preserve_state, seed_worker
from detcloud.shared.articles import with_article
from detcloud.shared.errors import DetcloudError

if TYPE_CHECKING:
    from typing_extensions import Buffer

_T = TypeVar("_T")
# Samples that are seeded together and computed in the same process.
CHUNK_SAMPLES = 16


def encode_source(
    make_source: Callable[[], Any], name: str, num_workers: int, rank: int, size: int
) -> tuple[int, Iterable[Sequence[Buffer]]]:
    """Call `make_source`; return the data set's length, and the samples of a rank as bytes.

    A rank has a contiguous part of the data set, in chunks of CHUNK_SAMPLES samples; ranks follow
    in order. With `num_workers`, worker processes encode the chunks. Each sample is a sequence of
    pieces, valid until the next sample is requested. The function runs with generators seeded by
    the name, and each chunk with generators seeded by the name and the chunk's number. So every
    builder stores the same samples. This process's generators are restored after `make_source`, and
    at the end of the iteration.

    Raises DetcloudError for a data set that is not map-style, and during the iteration for
    unsupported samples. Raises errors of `make_source` and of the data set.
    """
    with preserve_state():
        seed_worker(derived_seed(name, "source") % 2**32)
        source = make_source()
    length = _checked_length(source, name)
    chunks = -(-length // CHUNK_SAMPLES)
    numbers = range(chunks * rank // size, chunks * (rank + 1) // size)
    return length, _encode_samples(_EncodedChunks(source, name, length, numbers), num_workers)


class _EncodedChunks(Dataset[list[bytes]]):
    """The samples of some chunks, as bytes for worker processes or in pieces for this process."""

    def __init__(self, source: Any, name: str, length: int, chunks: range) -> None:
        self._source, self._name, self._length, self._chunks = source, name, length, chunks

    def __len__(self) -> int:
        return len(self._chunks)

    def __getitem__(self, place: int) -> list[bytes]:
        """Return the samples of the chunk at `place`, each as bytes. Seed the generators.

        Raises DetcloudError for an unsupported sample, and errors of the data set.
        """
        return list(self._encode_chunk(place, encode_sample))

    def encode_chunk_in_pieces(self, place: int) -> Iterator[list[Buffer]]:
        """Yield the samples of a chunk in pieces. Each sample is computed when it is requested.

        Seed the generators. Raises DetcloudError for an unsupported sample, and errors of the data
        set.
        """
        return self._encode_chunk(place, encode_pieces)

    def _encode_chunk(self, place: int, encode: Callable[[Any], _T]) -> Iterator[_T]:
        """Seed the generators for the chunk at `place`, and yield each encoded sample.

        Raises DetcloudError, with the sample's number, for unsupported samples.
        """
        chunk = self._chunks[place]
        seed_worker(derived_seed(self._name, chunk) % 2**32)
        first = chunk * CHUNK_SAMPLES
        for number in range(first, min(first + CHUNK_SAMPLES, self._length)):
            try:
                encoded = encode(self._source[number])
            except UnsupportedSample as error:
                raise DetcloudError(f"data set {self._name}, sample {number}: {error}") from None
            yield encoded


def _encode_samples(chunks: _EncodedChunks, num_workers: int) -> Iterator[Sequence[Buffer]]:
    """Yield all samples of the chunks in order, each as a sequence of pieces of its bytes.

    With a `num_workers` of 0, this process encodes the samples, and the pieces are valid until the
    next sample. Otherwise worker processes encode, and each sample is a single piece. Each chunk
    seeds the random generators of the encoding process. At the end of the iteration, this process's
    generators get their earlier state again.

    Raises DetcloudError for an unsupported sample, and errors of the data set.
    """
    with preserve_state():
        if num_workers == 0:
            for place in range(len(chunks)):
                yield from chunks.encode_chunk_in_pieces(place)
            return
        loader: DataLoader[Any] = DataLoader(
            chunks,
            batch_size=None,
            num_workers=num_workers,
            collate_fn=list,
            generator=torch.Generator().manual_seed(0),
        )
        for encoded in loader:
            yield from ([sample] for sample in encoded)


def _checked_length(source: Any, name: str) -> int:
    """Return the length of a map-style data set, with `__len__` and `__getitem__`.

    Raises DetcloudError, naming the data set `name`, for an object that is not map-style.
    """
    is_map_style = isinstance(source, Sized) and hasattr(source, "__getitem__")
    if isinstance(source, (IterableDataset, dict)) or not is_map_style:
        raise DetcloudError(
            f"data set {name}: the function gave {with_article(type(source).__name__)}: expected a "
            "data set with __len__ and __getitem__, whose samples have the numbers from 0"
        )
    return len(source)
