"""Pydantic adapters for records, created on first use."""

import json
from collections.abc import Callable
from functools import cache
from typing import Generic, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from control_plane.appended_values import validate_without_appended
from control_plane.rows.row_type import RowType
from control_plane.rows.stored_fields import stored_field_names
from control_plane.rows.unknown_fields import keep_unknown

Record = TypeVar("Record")


def lazy_adapter(record: type[Record]) -> Callable[[], TypeAdapter[Record]]:
    """Return a function that returns the pydantic adapter of a type.

    The adapter is created at the first call. Creating an adapter takes as long as importing a
    module, and a new process needs only few adapters.
    """
    return cache(lambda: TypeAdapter(record))


class RecordCodec(Generic[Record]):
    """The codec of rows with a dataclass as record, which pydantic validates.

    Unknown fields are ignored by `decode` and kept by `encode`. Values that a newer version
    appended to tuples are ignored by `decode`.

    Args:
        row_type: the declaration, which names `record`.
        record: a dataclass.
        exclude_defaults: whether fields with their defaults are left out.
    """

    def __init__(
        self, row_type: RowType, record: type[Record], *, exclude_defaults: bool = False
    ) -> None:
        assert row_type.record == f"{record.__module__}:{record.__qualname__}", row_type.name
        self.row_type = row_type
        self._names = frozenset(stored_field_names(record).values())
        self._adapter = lazy_adapter(record)
        self._exclude_defaults = exclude_defaults

    def decode(self, body: bytes) -> Record:
        """Decode the body of a row. Raises ValueError for an invalid body."""
        adapter = self._adapter()
        try:
            return adapter.validate_json(body)
        except ValidationError:
            return cast("Record", validate_without_appended(adapter, json.loads(body)))

    def encode(self, record: Record, before: bytes | None = None) -> bytes:
        """Encode a record as the body of a row.

        Args:
            record: the record.
            before: the body of the row that is replaced, with fields of newer versions to keep.
        """
        body = self._adapter().dump_json(
            record, exclude_defaults=self._exclude_defaults, by_alias=True
        )
        return keep_unknown(body, before, self._names)
