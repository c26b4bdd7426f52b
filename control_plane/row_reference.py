"""The page of all rows, docs/state.md, which `make references` writes.

The texts of a record's fields are the strings below the fields in the source. Python discards such
strings, so this module parses the source.
"""

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from importlib import import_module
from textwrap import dedent
from typing import Final, NamedTuple

from control_plane.paragraphs import first_paragraph, further_paragraphs, joined_paragraphs
from control_plane.rows.registry import SUBJECTS
from control_plane.rows.row_type import RowType
from control_plane.rows.stored_fields import stored_field_names

INTRODUCTION: Final = """\
# Rows of the state table

This page lists all rows of the state table. A row has a partition and a sort key, which this page
writes as `PARTITION / SORT`. Words in capitals stand for variable text, and `ACTOR` stands for the
address of an experiment, a trial, a pool or an agent.

`detcloud debug dump PARTITION` prints the rows of a partition. Modules without a folder of their
own are in `control_plane`. Times are in epoch milliseconds if a name ends in `_ms`.

`make references` writes this page, which is made from the declarations in `control_plane/rows`.
"""

SERVER_PACKAGES: Final = ("control_plane", "provisioner", "lambdas", "local_cluster")
"""The packages with records, writers and readers."""


def main() -> int:
    """Print the page. Return 0."""
    sys.stdout.write(render_page())
    return 0


def render_page() -> str:
    """Return the page of all rows as Markdown."""
    overview = [
        INTRODUCTION,
        "| row | key | wakes | expires |",
        "|---|---|---|---|",
        *(_overview_line(row) for rows in SUBJECTS.values() for row in rows),
    ]
    sections = [_section(subject, rows) for subject, rows in SUBJECTS.items()]
    return "\n".join([*overview, "", "\n".join(sections)])


def load_record(row_type: RowType) -> type | None:
    """Import and return the class of a row's record. Return None for a row without a class."""
    if not row_type.record:
        return None
    module, name = row_type.record.split(":")
    record: type = getattr(import_module(module), name)
    return record


def module_path(name: str) -> str:
    """Return the full name of a module that a declaration names as writer or reader."""
    is_full = name.partition(".")[0] in SERVER_PACKAGES
    return name if is_full else f"control_plane.{name}"


class FieldText(NamedTuple):
    """A field of a record as the page prints the field."""

    annotation: str
    """The type, as the source has it. "" if unknown."""
    meaning: str
    """The paragraphs of the text below the field. "" for a field without a text."""


def record_fields(record: type) -> dict[str, FieldText]:
    """Return the fields of a record by name. Fields of base classes come first."""
    found: dict[str, FieldText] = {}
    for base in reversed(record.__mro__):
        if base.__module__.startswith(SERVER_PACKAGES):
            found |= _class_fields(base)
    return found


def _class_fields(record: type) -> dict[str, FieldText]:
    """Return the fields in the source of a class by name, without inherited fields."""
    (definition,) = ast.parse(dedent(inspect.getsource(record))).body
    assert isinstance(definition, ast.ClassDef)
    fields: dict[str, FieldText] = {}
    last = ""
    for node in definition.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            last = node.target.id
            annotation = ast.unparse(node.annotation)
            if not last.startswith("_") and not annotation.startswith("ClassVar"):
                fields[last] = FieldText(annotation, "")
            continue
        if last in fields and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            meaning = joined_paragraphs(str(node.value.value))
            fields[last] = fields[last]._replace(meaning=meaning)
        last = ""
    return fields


def _overview_line(row: RowType) -> str:
    """Return the line of a row in the table at the beginning."""
    link = f"[{row.name}](#{row.name.replace(' ', '-')})"
    return f"| {link} | `{row.key}` | {', '.join(row.wakes)} | {row.expiry} |"


def _section(subject: str, rows: tuple[RowType, ...]) -> str:
    return "\n".join([f"## {subject}\n", *(_row_text(row) for row in rows)])


def _row_text(row: RowType) -> str:
    """Return the heading, the facts and the fields of a row."""
    facts: Mapping[str, str] = {
        "key": f"`{row.key}`",
        "body": row.body,
        "written by": _modules(row.writers),
        "read by": _modules(row.readers) or "operators, with `detcloud debug dump`",
        "expires": row.expiry,
        "due": row.due,
        "wakes": ", ".join(f"`{function}`" for function in row.wakes),
        "masked": ", ".join(f"`{name}`" for name in row.secret_fields),
    }
    lines = [f"### {row.name}\n", f"{row.meaning}\n"]
    lines += [f"- {name}: {text}" for name, text in facts.items() if text]
    return "\n".join([*lines, "", *_field_lines(row)])


def _modules(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name.replace('.', '/')}`" for name in names)


def _field_lines(row: RowType) -> Iterator[str]:
    """Yield the lines of a row's table of fields. Yield nothing for a row without fields."""
    record = load_record(row)
    described = {name: FieldText("", text) for name, text in row.fields.items()}
    fields = described if record is None else record_fields(record)
    if not fields:
        return
    yield "| field | type | meaning |" if record else "| field | meaning |"
    yield "|---|---|---|" if record else "|---|---|"
    stored_names = stored_field_names(record) if is_dataclass(record) else {}
    for name, field in fields.items():
        cells = [f"`{stored_names.get(name, name)}`"]
        cells += [_cell(f"`{field.annotation}`")] if record else []
        meaning = first_paragraph(field.meaning).removesuffix(".")
        yield f"| {' | '.join([*cells, _cell(meaning)])} |"
    yield ""
    for name, field in fields.items():
        yield from further_paragraphs(f"`{stored_names.get(name, name)}`", field.meaning)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main())
