"""Templates in the state table: rows, ownership and changes."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from control_plane.access.ownership import Action, OwnedObject, check_may_change, find_refusal
from control_plane.access.principals import Principal
from control_plane.config.template import check_masks, masked_template
from control_plane.errors import Code, RequestError
from control_plane.rows import user_rows
from control_plane.rows.json_codec import JsonCodec
from control_plane.state.table import Delete, Key, Row, StateTable, Write
from control_plane.usecases.row_changes import change_row, replacing_put

TEMPLATES = user_rows.TEMPLATE.partition
MASKING = 1
"""The version of the rules in detcloud/shared/masking.py. Older rows are masked again when read."""
# The row of an idempotency key holds the text in a reply and in an answer, where a quotation mark
# takes two and four bytes. 6 x 48 KiB stay below a row's limit of 400 KiB.
BYTES_MAX = 48 * 1024


TemplateExtraWrites = Callable[["TemplateRecord"], tuple[Write, ...]]
"""Returns further writes for the commit of a change, given the template."""


@dataclass(frozen=True)
class TemplateRecord:
    """The stored row of a template."""

    name: str
    config: str
    """The text of the template, secrets included."""
    masked: str
    """The text with masked secrets, for other users; "" if the template has no secrets."""
    created_ms: int
    updated_ms: int
    user: str
    """The user who created the template and owns it."""
    masking: int = 0
    """The version of the masking rules that produced `masked`."""

    def shows_secrets_to(self, caller: Principal) -> bool:
        """Return whether the caller, as an admin or the owner, may see the template's secrets."""
        return find_refusal(caller, Action.CHANGE, owned_template(self)) is None

    def text_for(self, caller: Principal) -> str:
        """Return the text of the template for a caller.

        Admins and the owner get the text unchanged. For other callers secrets are masked, by the
        present rules if older masking rules wrote the row. A template without secrets is returned
        unchanged.

        Raises:
            ConfigInvalid: the text must be masked by the present rules and can no longer be read.
        """
        if self.shows_secrets_to(caller):
            return self.config
        masked = self.masked if self.masking == MASKING else masked_template(self.config)
        return masked or self.config


_CODEC = JsonCodec(user_rows.TEMPLATE, TemplateRecord, ensure_ascii=False)


def decode_template(body: bytes) -> TemplateRecord:
    """Decode the body of a template's row. Ignore fields of newer versions."""
    return _CODEC.decode(body)


def owned_template(template: TemplateRecord) -> OwnedObject:
    """Return the ownership of a template. The creator owns the template."""
    alternative = "store your own under another name"
    return OwnedObject(f"template {template.name}", (template.user,), alternative)


def load_template(table: StateTable, name: str) -> TemplateRecord | None:
    """Load a template, secrets included. Return None if the template does not exist."""
    row = table.get(Key(TEMPLATES, name))
    return None if row is None else decode_template(row.body)


def find_owned_template(table: StateTable, name: str) -> tuple[OwnedObject, ...]:
    """Return the ownership of a template, as a tuple. Empty if the template does not exist."""
    record = load_template(table, name)
    return () if record is None else (owned_template(record),)


def put_template(
    table: StateTable,
    template: TemplateRecord,
    caller: Principal,
    extra_writes: TemplateExtraWrites,
    *,
    expected_updated_ms: int | None = None,
) -> TemplateRecord:
    """Create a template or replace the text; return the stored template.

    The new row also has the text with masked secrets, for other users. An existing template keeps
    its owner and its time of creation. The same text again does not change `updated_ms`; otherwise
    `updated_ms` always increases.

    Args:
        table: the state table.
        template: the new template; `masked` and `masking` are ignored.
        caller: the user.
        extra_writes: returns further writes of the commit.
        expected_updated_ms: the `updated_ms` that the caller read, or 0 if the template must not
            exist. None skips the check.

    Raises:
        ConfigInvalid: the text is not a part of a configuration, or has masks in place of secrets.
        RequestError: forbidden, if another user owns the template and the caller is not an admin;
            conflict, if `updated_ms` is not the expected one; unavailable, if other requests keep
            changing the template.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """
    check_masks(template.config)
    masked = masked_template(template.config)
    masked = "" if masked == template.config else masked
    new = replace(template, masked=masked, masking=MASKING)

    def change(row: Row | None) -> tuple[TemplateRecord, tuple[Write, ...]]:
        stored = new
        if row is not None:
            former = decode_template(row.body)
            check_may_change(caller, owned_template(former))
            # The time always increases, even if the clock goes back, because clients use the time
            # as the template's version.
            updated_ms = max(new.updated_ms, former.updated_ms + 1)
            stored = replace(
                new, created_ms=former.created_ms, updated_ms=updated_ms, user=former.user
            )
            if stored.config == former.config:
                stored = replace(former, masked=stored.masked, masking=MASKING)
        _check_time(new.name, row, expected_updated_ms)
        body = _CODEC.encode(stored, row.body if row else None)
        put = replacing_put(Key(TEMPLATES, new.name), row, body, new.updated_ms)
        return stored, (put, *extra_writes(stored))

    return change_row(table, Key(TEMPLATES, new.name), change, f"template {new.name}")


def delete_template(
    table: StateTable, name: str, caller: Principal, extra_writes: TemplateExtraWrites
) -> TemplateRecord:
    """Delete a template in a commit with the extra writes; return the deleted template.

    Raises:
        RequestError: not_found, if the template does not exist; forbidden, if another user owns the
            template and the caller is not an admin; unavailable, if other requests keep changing
            the template.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """

    def change(row: Row | None) -> tuple[TemplateRecord, tuple[Write, ...]]:
        if row is None:
            raise missing_template_error(name)
        template = decode_template(row.body)
        check_may_change(caller, owned_template(template), Action.DELETE)
        return template, (Delete(row.key, row.revision), *extra_writes(template))

    return change_row(table, Key(TEMPLATES, name), change, f"template {name}")


def missing_template_error(name: str) -> RequestError:
    """Return RequestError not_found for a template that does not exist; raise nothing."""
    return RequestError(Code.NOT_FOUND, f"there is no template {name}")


def _check_time(name: str, row: Row | None, expected: int | None) -> None:
    """Check that the template in `row` was last changed at the expected time.

    0 expects that the template does not exist. None skips the check. `row` is None for a missing
    template.

    Raises:
        RequestError: conflict, if the template was deleted, created or changed in the meantime.
    """
    known = 0 if row is None else decode_template(row.body).updated_ms
    if expected is None or known == expected:
        return
    if row is None:
        raise RequestError(Code.CONFLICT, f"template {name} was deleted in the meantime")
    if expected == 0:
        raise RequestError(Code.CONFLICT, f"there is a template {name} already")
    text = f"template {name} was changed in the meantime; read it again and retry"
    raise RequestError(Code.CONFLICT, text)
