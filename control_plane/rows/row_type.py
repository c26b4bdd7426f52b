"""The declaration of a family of rows: the keys, the record, the writers and the readers.

Each other module of this folder declares the rows of a subject, and registry.py lists all rows.
docs/state.md is made from the declarations.

The declarations import nothing of the control plane, because every function imports some of them
at its start. A record is therefore named as `MODULE:CLASS`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

Function = Literal["advance", "tick"]
"""A function that a new row can wake."""

ACTOR = "ACTOR"
"""The partition of rows that every actor has."""

_VARIABLE = re.compile(r"[A-Z]{2,}")


@dataclass(frozen=True, eq=False)
class RowType:
    """A family of rows: all rows with the given form of keys and the given record."""

    name: str
    """The name of the family, unique among all families."""
    key: str
    """The form of the keys, as `PARTITION / SORT`. Words in capitals stand for variable text."""
    meaning: str
    """A sentence about the row for the page of all rows."""
    writers: tuple[str, ...]
    """The modules that write the row. `control_plane.` is left out."""
    readers: tuple[str, ...]
    """The modules that read the row. `control_plane.` is left out."""
    record: str = ""
    """The class of the decoded body, as `MODULE:CLASS`. "" if the body has no class."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """The meaning of each field of a JSON body without a class, by field name."""
    body: str = "JSON"
    """The encoding of the body."""
    expiry: str = ""
    """When the row is deleted without a writer. "" if it stays until a writer deletes the row."""
    due: str = ""
    """When the recovery pass retries the row. "" if the row is never retried."""
    wakes: tuple[Function, ...] = ()
    """The functions that the creation of a row wakes at once."""
    is_mutable: bool = False
    """Whether writers change fields of the stored record.

    Fields that a newer version stored survive such changes. False for rows that are only created,
    replaced as a whole or deleted, and for rows that contain the version of their format.
    """
    is_passing: bool = False
    """Whether a cluster without failures has no row left after the end of all work."""
    secret_fields: tuple[str, ...] = ()
    """The stored names of fields that are masked as a whole, because their texts may be secret.

    Secrets at known places of configurations are masked in every row (detcloud/shared/masking.py).
    """

    @cached_property
    def partition(self) -> str:
        """The fixed start of the partition: `leases#` for `leases#POOL / AGENT`."""
        return self._fixed_start(0)

    @cached_property
    def sort(self) -> str:
        """The fixed start of the sort key: `M#` for `ACTOR / M#CLOCK#SENDER`."""
        return self._fixed_start(1)

    @cached_property
    def has_one_partition(self) -> bool:
        """Whether all rows of the family share a partition."""
        return self.key.partition(" / ")[0] == self.partition

    @cached_property
    def has_one_sort(self) -> bool:
        """Whether a partition has no more than a single row of the family."""
        return self.key.partition(" / ")[2] == self.sort

    @property
    def only_key(self) -> tuple[str, str]:
        """The partition and the sort key of a family that has a single row."""
        assert self.has_one_partition, self.name
        assert self.has_one_sort, self.name
        return self.partition, self.sort

    @property
    def is_of_actors(self) -> bool:
        """Whether the row is stored in the partition of each actor."""
        return self.key.startswith(f"{ACTOR} / ")

    @cached_property
    def sort_end(self) -> str:
        """A sort key after all keys that start with `sort`, for queries."""
        return f"{self.sort[:-1]}{chr(ord(self.sort[-1]) + 1)}" if self.sort else "\x7f"

    def partition_of(self, subject: str) -> str:
        """Return the partition of a subject: `leases#POOL` for the name of a pool."""
        return self.partition + subject

    def matches_sort(self, sort: str) -> bool:
        """Return whether a sort key has the form of this family."""
        if self.has_one_sort:
            return sort == self.sort
        return len(sort) > len(self.sort) and sort.startswith(self.sort)

    def _fixed_start(self, place: int) -> str:
        """Return the text before the first variable of the partition (0) or the sort key (1)."""
        text = self.key.split(" / ")[place]
        found = _VARIABLE.search(text)
        return text if found is None else text[: found.start()]
