"""docs/state.md lists the declared rows, and every name in a declaration exists."""

from dataclasses import is_dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest

from control_plane import row_reference
from control_plane.rows.registry import ROW_TYPES
from control_plane.rows.row_type import RowType
from control_plane.rows.stored_fields import stored_field_names

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "state.md"


def test_page_is_current() -> None:
    assert DOCUMENT.read_text() == row_reference.render_page(), "run `make references`"


@pytest.mark.parametrize("row_type", ROW_TYPES, ids=lambda row_type: row_type.name)
def test_names_in_declarations_exist(row_type: RowType) -> None:
    for module in (*row_type.writers, *row_type.readers):
        assert find_spec(row_reference.module_path(module)), module
    record = row_reference.load_record(row_type)
    assert record is None or not row_type.fields
    fields = row_type.fields if record is None else row_reference.record_fields(record)
    stored_names = stored_field_names(record) if is_dataclass(record) else {}
    stored = {stored_names.get(name, name) for name in fields}
    assert stored.issuperset(row_type.secret_fields)
