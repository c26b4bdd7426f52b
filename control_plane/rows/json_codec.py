"""The codec of rows with a dataclass as record and a JSON object as body."""

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any, Generic, TypeVar

from control_plane.rows.row_type import RowType
from control_plane.rows.stored_fields import stored_field_names
from control_plane.rows.unknown_fields import keep_unknown

R = TypeVar("R")


class JsonCodec(Generic[R]):
    """The codec of a row type. Unknown fields are ignored by `decode` and kept by `encode`.

    Args:
        row_type: the declaration, which names `record`.
        record: a dataclass. Values are JSON, tuples, or values that `converters` makes.
        converters: the functions that make a field's value from the decoded JSON, by the field's
            name in the code.
        omitted: the names in the code of fields that are left out if they have their defaults.
        ensure_ascii: whether other characters than ASCII are escaped.
    """

    def __init__(
        self,
        row_type: RowType,
        record: type[R],
        converters: Mapping[str, Callable[[Any], object]] | None = None,
        *,
        omitted: frozenset[str] = frozenset(),
        ensure_ascii: bool = True,
    ) -> None:
        assert row_type.record == f"{record.__module__}:{record.__qualname__}", row_type.name
        defaults = {f.name: f.default for f in fields(record)}  # type: ignore[arg-type]
        assert all(defaults[name] is not MISSING for name in omitted), row_type.name
        self.row_type = row_type
        self.names = frozenset(stored_field_names(record).values())
        self._record = record
        self._stored_names = stored_field_names(record)
        self._defaults = defaults
        self._converters = dict(converters or {})
        self._omitted = omitted
        self._ensure_ascii = ensure_ascii

    def decode(self, body: bytes) -> R:
        """Decode the body of a row. Missing fields get their defaults.

        Raises ValueError for a body that is not JSON, and TypeError if a field without a default is
        missing.
        """
        return self.from_fields(json.loads(body))

    def from_fields(self, values: Mapping[str, Any]) -> R:
        """Build the record from the decoded JSON object. Raises TypeError as `decode` does."""
        stored_names = self._stored_names.items()
        known = {name: values[stored] for name, stored in stored_names if stored in values}
        for name in self._converters.keys() & known.keys():
            known[name] = self._converters[name](known[name])
        return self._record(**known)

    def encode(self, record: R, before: bytes | None = None) -> bytes:
        """Encode a record as the body of a row.

        Args:
            record: the record.
            before: the body of the row that is replaced, with fields of newer versions to keep.
        """
        values = {
            self._stored_names[name]: value
            for name, default in self._defaults.items()
            if (value := getattr(record, name)) != default or name not in self._omitted
        }
        body = json.dumps(values, ensure_ascii=self._ensure_ascii).encode()
        return keep_unknown(body, before, self.names)
