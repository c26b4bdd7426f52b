"""Templates in the state table, one row each, by name."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from control_plane.api.errors import ApiError, Code
from control_plane.api.row_changes import change_row
from control_plane.config.template import masked_template
from control_plane.state.table import Delete, Expect, Key, Put, Row, StateTable, Write

TEMPLATES = "templates"
# The row of an idempotency key holds it in a reply and in an answer, where a quotation mark is two
# and four bytes: 6 x 48 KiB stay below a row's 400 KiB.
BYTES_MAX = 48 * 1024


Beside = Callable[["Stored"], tuple[Write, ...]]
"""What a change has to commit beside itself, given the template."""


@dataclass(frozen=True)
class Stored:
    """A template. `user` owns it; `masked` is its text for others, "" where it hides nothing."""

    name: str
    config: str
    masked: str
    created_ms: int
    updated_ms: int
    user: str

    def text_for(self, user: str, is_admin: bool) -> str:
        """The text as a user sees it."""
        return self.config if is_admin or user == self.user else self.masked or self.config


def read_template_row(body: bytes) -> Stored:
    """A template as stored."""
    return Stored(**json.loads(body))


def stored_template(table: StateTable, name: str) -> Stored | None:
    """The template of this name, or None."""
    row = table.get(Key(TEMPLATES, name))
    return None if row is None else read_template_row(row.body)


def put_template(table: StateTable, asked: Stored, is_admin: bool, beside: Beside) -> Stored:
    """Stores a template, whose `masked` need not be given, for its user. What was there before
    keeps its owner and the time it was made; the same text again changes nothing.

    Raises:
        ConfigInvalid: it is no part of a configuration.
        ApiError: forbidden, for another's template unless `is_admin`.
    """
    masked = masked_template(asked.config)
    asked = replace(asked, masked="" if masked == asked.config else masked)

    def change(row: Row | None) -> tuple[Stored, tuple[Write, ...]]:
        stored, revision = asked, 0
        if row is not None:
            known, revision = read_template_row(row.body), row.revision
            _check_owner(known, asked.user, is_admin)
            stored = replace(asked, created_ms=known.created_ms, user=known.user)
            if stored.config == known.config:
                stored = known
        body = json.dumps(asdict(stored), ensure_ascii=False).encode()
        put = Put(Key(TEMPLATES, asked.name), revision + 1, body, revision or Expect.ABSENT)
        return stored, (put, *beside(stored))

    return change_row(table, Key(TEMPLATES, asked.name), change, f"template {asked.name}")


def delete_template(
    table: StateTable, name: str, user: str, is_admin: bool, beside: Beside
) -> Stored:
    """Deletes a template and returns what it was.

    Raises:
        ApiError: not_found; forbidden, for another's unless `is_admin`.
    """

    def change(row: Row | None) -> tuple[Stored, tuple[Write, ...]]:
        if row is None:
            raise no_template(name)
        known = read_template_row(row.body)
        _check_owner(known, user, is_admin)
        return known, (Delete(row.key, row.revision), *beside(known))

    return change_row(table, Key(TEMPLATES, name), change, f"template {name}")


def no_template(name: str) -> ApiError:
    """The answer where there is none."""
    return ApiError(Code.NOT_FOUND, f"there is no template {name}")


def _check_owner(known: Stored, user: str, is_admin: bool) -> None:
    if user != known.user and not is_admin:
        text = f"template {known.name} is {known.user}'s; make one of another name, or ask an admin"
        raise ApiError(Code.FORBIDDEN, text)
