"""Templates in the state table, one row each, by name."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from control_plane.config.template import masked_template
from control_plane.errors import Code, RequestError
from control_plane.state.table import Delete, Expect, Key, Put, Row, StateTable, Write
from control_plane.usecases.row_changes import change_row

TEMPLATES = "templates"
# The row of an idempotency key holds the text in a reply and in an answer, where a quotation mark
# is two and four bytes: 6 x 48 KiB stay below a row's 400 KiB.
BYTES_MAX = 48 * 1024


TemplateExtraWrites = Callable[["TemplateRecord"], tuple[Write, ...]]
"""Makes the writes that a change has to commit with its own, given the template."""


@dataclass(frozen=True)
class TemplateRecord:
    """A template as stored. `user` owns it; `masked` is its text for others, "" where it hides
    nothing.
    """

    name: str
    config: str
    masked: str
    created_ms: int
    updated_ms: int
    user: str

    def text_for(self, user: str, is_admin: bool) -> str:
        """The template as a user sees it."""
        return self.config if is_admin or user == self.user else self.masked or self.config


def decode_template(body: bytes) -> TemplateRecord:
    """Decode the body of a template's row."""
    return TemplateRecord(**json.loads(body))


def load_template(table: StateTable, name: str) -> TemplateRecord | None:
    """Load the template of this name, or None."""
    row = table.get(Key(TEMPLATES, name))
    return None if row is None else decode_template(row.body)


def put_template(
    table: StateTable,
    template: TemplateRecord,
    is_admin: bool,
    extra_writes: TemplateExtraWrites,
    *,
    expected_updated_ms: int | None = None,
) -> TemplateRecord:
    """Store a template, whose `masked` need not be given, for its user. What was there before
    keeps its owner and the time it was made; the same text again changes nothing.

    Raises:
        ConfigInvalid: it is no part of a configuration.
        RequestError: forbidden, for another's template unless `is_admin`; conflict, if it was last
            changed at another time than expected, 0 where there is none.
    """
    masked = masked_template(template.config)
    new = replace(template, masked="" if masked == template.config else masked)

    def change(row: Row | None) -> tuple[TemplateRecord, tuple[Write, ...]]:
        stored, revision = new, 0
        if row is not None:
            former, revision = decode_template(row.body), row.revision
            _check_owner(former, new.user, is_admin)
            # A later time than before, whatever the clock says: clients tell versions by it.
            updated_ms = max(new.updated_ms, former.updated_ms + 1)
            stored = replace(
                new, created_ms=former.created_ms, updated_ms=updated_ms, user=former.user
            )
            if stored.config == former.config:
                stored = former
        _check_time(new.name, row, expected_updated_ms)
        body = json.dumps(asdict(stored), ensure_ascii=False).encode()
        put = Put(Key(TEMPLATES, new.name), revision + 1, body, revision or Expect.ABSENT)
        return stored, (put, *extra_writes(stored))

    return change_row(table, Key(TEMPLATES, new.name), change, f"template {new.name}")


def delete_template(
    table: StateTable, name: str, user: str, is_admin: bool, extra_writes: TemplateExtraWrites
) -> TemplateRecord:
    """Delete a template and return it as it was.

    Raises:
        RequestError: not_found; forbidden, for another's unless `is_admin`.
    """

    def change(row: Row | None) -> tuple[TemplateRecord, tuple[Write, ...]]:
        if row is None:
            raise missing_template_error(name)
        template = decode_template(row.body)
        _check_owner(template, user, is_admin)
        return template, (Delete(row.key, row.revision), *extra_writes(template))

    return change_row(table, Key(TEMPLATES, name), change, f"template {name}")


def missing_template_error(name: str) -> RequestError:
    """The error for a name that no template has."""
    return RequestError(Code.NOT_FOUND, f"there is no template {name}")


def _check_time(name: str, row: Row | None, expected: int | None) -> None:
    known = 0 if row is None else decode_template(row.body).updated_ms
    if expected is None or known == expected:
        return
    if row is None:
        raise RequestError(Code.CONFLICT, f"template {name} was deleted in the meantime")
    if expected == 0:
        raise RequestError(Code.CONFLICT, f"there is a template {name} already")
    text = f"template {name} was changed in the meantime; read it again and retry"
    raise RequestError(Code.CONFLICT, text)


def _check_owner(template: TemplateRecord, user: str, is_admin: bool) -> None:
    if user != template.user and not is_admin:
        owner = f"template {template.name} is {template.user}'s"
        text = f"{owner}; use another name, or ask an admin"
        raise RequestError(Code.FORBIDDEN, text)
