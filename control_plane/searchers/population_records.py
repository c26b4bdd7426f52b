"""The records of population-based training in blobs: one per trial, and lists of trial numbers.

A blob contains 30 records of trials or 250 trial numbers.
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from control_plane.searchers.blob_store import BlobStore
from control_plane.searchers.halving.rungs import WORST_RESULT

# The fields of a Member, in order.
_MEMBER = struct.Struct("<iid?16s")
_MEMBERS_PER_BLOB = 30
_NUMBER = struct.Struct("<I")
_NUMBERS_PER_BLOB = 250


class Member(NamedTuple):
    """The record of a trial. Rounds are numbered from 0."""

    first_round: int
    """The round in which the trial was created."""
    result_round: int = -1
    """The latest round in which the trial has a result, or -1."""
    result: float = WORST_RESULT
    """The result in `result_round`; smaller is better."""
    closed: bool = False
    """Whether the trial ended, or the method closed the trial."""
    request_id: bytes = bytes(16)


class PopulationRecords:
    """The records of a search in the search's blobs."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs

    def read_member(self, trial: int) -> Member:
        """Return the record of a trial. Raise struct.error if no record was written."""
        number, place = divmod(trial, _MEMBERS_PER_BLOB)
        blob = self._blobs.read(f"trials/{number}") or b""
        return Member(*_MEMBER.unpack_from(blob, place * _MEMBER.size))

    def write_member(self, trial: int, member: Member) -> None:
        """Write the record of a trial. The records of all earlier trials must exist."""
        number, place = divmod(trial, _MEMBERS_PER_BLOB)
        blob = bytearray(self._blobs.read(f"trials/{number}") or b"")
        start = place * _MEMBER.size
        blob[start : start + _MEMBER.size] = _MEMBER.pack(*member)
        self._blobs.write(f"trials/{number}", bytes(blob))

    def read_members(self, count: int) -> Iterator[Member]:
        """Yield the records of the first `count` trials, or of all trials if fewer exist."""
        for number in range(-(-count // _MEMBERS_PER_BLOB)):
            blob = self._blobs.read(f"trials/{number}") or b""
            for values in islice(_MEMBER.iter_unpack(blob), count - number * _MEMBERS_PER_BLOB):
                yield Member(*values)

    def read_numbers(self, name: str, count: int) -> Iterator[int]:
        """Yield the first `count` trial numbers of the list `name`."""
        for start in range(0, count, _NUMBERS_PER_BLOB):
            blob = self._blobs.read(f"{name}/{start // _NUMBERS_PER_BLOB}") or b""
            packed = blob[: (count - start) * _NUMBER.size]
            yield from (trial for (trial,) in _NUMBER.iter_unpack(packed))

    def write_numbers(self, name: str, trials: Sequence[int]) -> None:
        """Write the list `name` of trial numbers, from the start.

        Blobs beyond the new end are not deleted; readers pass the number of valid entries.
        """
        for start in range(0, len(trials), _NUMBERS_PER_BLOB):
            packed = map(_NUMBER.pack, trials[start : start + _NUMBERS_PER_BLOB])
            self._blobs.write(f"{name}/{start // _NUMBERS_PER_BLOB}", b"".join(packed))

    def append_number(self, name: str, count: int, trial: int) -> None:
        """Append a trial number to the list `name`, which has `count` valid entries."""
        blob_name = f"{name}/{count // _NUMBERS_PER_BLOB}"
        end = count % _NUMBERS_PER_BLOB * _NUMBER.size
        before = (self._blobs.read(blob_name) or b"")[:end]
        self._blobs.write(blob_name, before + _NUMBER.pack(trial))
