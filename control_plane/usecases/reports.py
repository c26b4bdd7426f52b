"""Reports: rows, ownership and changes.

A report is a text in Markdown with charts, which a user writes for other users. The facts and the
text are two rows, so that lists read no texts. Every commit writes both rows with equal revisions.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

from control_plane.access.ownership import Action, OwnedObject, check_may_change
from control_plane.access.principals import Principal, Role
from control_plane.actors.identifiers import COUNTERS
from control_plane.errors import Code, RequestError
from control_plane.queries.pages import PageRequest
from control_plane.queries.row_pages import read_row_page
from control_plane.rows import user_rows
from control_plane.rows.json_codec import JsonCodec
from control_plane.state.table import Delete, Expect, Key, Put, Row, StateTable, Write
from control_plane.usecases.row_changes import change_row

REPORTS = user_rows.REPORT.partition
TEXTS = user_rows.REPORT_TEXT.partition
REPORTS_MAX = 500
"""The most reports of a cluster. Concurrent requests may exceed the limit by a few."""
TEXT_BYTES_MAX = 64 * 1024
"""The most bytes of a text in UTF-8. JSON needs up to six bytes for each: below a row's 400 KiB."""
_COUNTER = Key(COUNTERS, "report")
# A writer that commits between the reads of the two rows is rare.
_READS_MAX = 10


class Sharing(StrEnum):
    """The access of other users to a report."""

    PRIVATE = "private"
    """Only the owner and admins read and change the report."""
    READ = "read"
    """All users read the report."""
    EDIT = "edit"
    """All users read the report, and change its title and text."""


@dataclass(frozen=True)
class ReportRecord:
    """The stored facts of a report."""

    id: int
    title: str
    user: str
    """The user who created the report and owns it."""
    sharing: Sharing
    created_ms: int
    updated_ms: int
    updated_by: str
    """The user who made the last change."""


@dataclass(frozen=True)
class ReportText:
    """The stored text of a report."""

    text: str
    """Markdown, with charts as fenced blocks."""


@dataclass(frozen=True)
class StoredReport:
    """The facts of a report, with the number of the commit that wrote the report."""

    record: ReportRecord
    revision: int
    """The number of the commit, from 1. A change names the revision that its writer read."""


@dataclass(frozen=True)
class ReportContent:
    """The part of a report that users write."""

    title: str
    text: str
    sharing: Sharing


ReportExtraWrites = Callable[[StoredReport], tuple[Write, ...]]
"""Returns further writes for the commit of a change, given the report."""

_CODEC = JsonCodec(user_rows.REPORT, ReportRecord, {"sharing": Sharing}, ensure_ascii=False)
_TEXT_CODEC = JsonCodec(user_rows.REPORT_TEXT, ReportText, ensure_ascii=False)


def decode_report(body: bytes) -> ReportRecord:
    """Decode the body of a report's row. Ignore fields of newer versions."""
    return _CODEC.decode(body)


def decode_report_text(body: bytes) -> ReportText:
    """Decode the body of the row with a report's text. Ignore fields of newer versions."""
    return _TEXT_CODEC.decode(body)


def list_reports(
    table: StateTable, caller: Principal, request: PageRequest
) -> tuple[list[StoredReport], str | None]:
    """Return a page of the caller's and the shared reports, and the cursor of the next page.

    The newest report is first. The cursor is None on the last page.

    Raises:
        RequestError: invalid, for a cursor of another list.
    """

    def is_wanted(row: Row) -> bool:
        record = decode_report(row.body)
        return record.sharing is not Sharing.PRIVATE or record.user == caller.user

    rows, cursor = read_row_page(table, REPORTS, request, descending=True, is_wanted=is_wanted)
    return [_stored_report(row) for row in rows], cursor


def load_report(table: StateTable, report_id: int, caller: Principal) -> tuple[StoredReport, str]:
    """Return a report and the text, both with equal revisions.

    Raises:
        RequestError: not_found, if the report does not exist, or is another user's private report
            and the caller is not an admin; unavailable, if the report keeps changing.
    """
    for _ in range(_READS_MAX):
        row = table.get(_key(report_id))
        if row is None or not _is_visible(decode_report(row.body), caller):
            raise _missing_error(report_id)
        text_row = table.get(_text_key(report_id))
        if text_row is not None and text_row.revision == row.revision:
            return _stored_report(row), decode_report_text(text_row.body).text
    raise RequestError(Code.UNAVAILABLE, f"report {report_id} changes too fast; try again")


def find_owned_report(
    table: StateTable, report_id: int, caller: Principal, action: Action
) -> tuple[OwnedObject, ...]:
    """Return the ownership of a report, as a tuple.

    The tuple is empty for a report that `caller` does not see, because the refusal would show that
    the report exists. It is also empty for a change of a report that all users may change.
    """
    row = table.get(_key(report_id))
    if row is None:
        return ()
    record = decode_report(row.body)
    is_open = action is Action.CHANGE and record.sharing is Sharing.EDIT
    return () if is_open or not _is_visible(record, caller) else (_owned_report(record),)


def create_report(
    table: StateTable,
    content: ReportContent,
    caller: Principal,
    now_ms: int,
    extra_writes: ReportExtraWrites,
) -> StoredReport:
    """Store a new report of the caller under the next id, and return the report.

    A single commit writes both rows and the counter of ids. Ids are never used again.

    Raises:
        RequestError: conflict, if the cluster has REPORTS_MAX reports; unavailable, if other
            requests keep creating reports.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """
    _check_count(table)

    def change(row: Row | None) -> tuple[StoredReport, tuple[Write, ...]]:
        number = 1 if row is None else int(row.body)
        revision = 0 if row is None else row.revision
        next_number = b"%d" % (number + 1)
        counter_put = Put(_COUNTER, revision + 1, next_number, revision or Expect.ABSENT)
        record = ReportRecord(
            id=number,
            title=content.title,
            user=caller.user,
            sharing=content.sharing,
            created_ms=now_ms,
            updated_ms=now_ms,
            updated_by=caller.user,
        )
        stored = StoredReport(record, 1)
        return stored, (counter_put, *_puts(stored, content.text, None), *extra_writes(stored))

    return change_row(table, _COUNTER, change, "the number of reports")


def change_report(
    table: StateTable,
    report_id: int,
    content: ReportContent,
    read_revision: int,
    caller: Principal,
    now_ms: int,
    extra_writes: ReportExtraWrites,
) -> StoredReport:
    """Replace the content of a report that still has the revision `read_revision`.

    Return the changed report. `updated_ms` always increases.

    Raises:
        RequestError: not_found, if the report does not exist or is not visible to the caller;
            forbidden, if the caller may not change the report, or only its owner may change the
            sharing; conflict, with the user who changed the report, if it has another revision.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """

    def change(row: Row | None) -> tuple[StoredReport, tuple[Write, ...]]:
        former = _visible_record(row, report_id, caller)
        assert row is not None
        if former.sharing is not Sharing.EDIT or content.sharing is not former.sharing:
            check_may_change(caller, _owned_report(former))
        _check_revision(former, row.revision, read_revision)
        record = replace(
            former,
            title=content.title,
            sharing=content.sharing,
            updated_ms=max(now_ms, former.updated_ms + 1),
            updated_by=caller.user,
        )
        stored = StoredReport(record, row.revision + 1)
        return stored, (*_puts(stored, content.text, row), *extra_writes(stored))

    return change_row(table, _key(report_id), change, f"report {report_id}", also=(TEXTS,))


def delete_report(
    table: StateTable, report_id: int, caller: Principal, extra_writes: ReportExtraWrites
) -> StoredReport:
    """Delete a report in a commit with the extra writes; return the deleted report.

    Raises:
        RequestError: not_found, if the report does not exist or is not visible to the caller;
            forbidden, if another user owns the report and the caller is not an admin;
            unavailable, if other requests keep changing the report.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """

    def change(row: Row | None) -> tuple[StoredReport, tuple[Write, ...]]:
        record = _visible_record(row, report_id, caller)
        assert row is not None
        check_may_change(caller, _owned_report(record), Action.DELETE)
        keys = (row.key, _text_key(report_id))
        deletes = (Delete(key, row.revision) for key in keys)
        stored = StoredReport(record, row.revision)
        return stored, (*deletes, *extra_writes(stored))

    return change_row(table, _key(report_id), change, f"report {report_id}", also=(TEXTS,))


def _puts(stored: StoredReport, text: str, former: Row | None) -> tuple[Put, Put]:
    """Return the writes of both rows. They expect the revision of `former`, or no rows for None."""
    expect = Expect.ABSENT if former is None else former.revision
    body = _CODEC.encode(stored.record, former.body if former else None)
    text_body = _TEXT_CODEC.encode(ReportText(text))
    return (
        Put(_key(stored.record.id), stored.revision, body, expect),
        Put(_text_key(stored.record.id), stored.revision, text_body, expect),
    )


def _visible_record(row: Row | None, report_id: int, caller: Principal) -> ReportRecord:
    """Decode a report's row. Raise RequestError not_found if the caller does not see the report."""
    record = None if row is None else decode_report(row.body)
    if record is None or not _is_visible(record, caller):
        raise _missing_error(report_id)
    return record


def _is_visible(record: ReportRecord, caller: Principal) -> bool:
    is_shared = record.sharing is not Sharing.PRIVATE
    return is_shared or record.user == caller.user or caller.role is Role.ADMIN


def _owned_report(record: ReportRecord) -> OwnedObject:
    return OwnedObject(f"report {record.id}", (record.user,), "create your own report")


def _missing_error(report_id: int) -> RequestError:
    text = f"there is no report {report_id}, or its owner does not share it"
    return RequestError(Code.NOT_FOUND, text)


def _check_revision(record: ReportRecord, revision: int, expected: int) -> None:
    """Raise RequestError conflict, with the last writer, unless the revisions are equal."""
    if revision == expected:
        return
    raise RequestError(
        Code.CONFLICT,
        f"{record.updated_by} changed report {record.id} in the meantime: it has revision "
        f"{revision}, not {expected}; read it again and repeat your change",
    )


def _check_count(table: StateTable) -> None:
    """Raise RequestError conflict if the cluster has REPORTS_MAX reports."""
    if len(table.query(REPORTS, " ", "\x7f", limit=REPORTS_MAX).rows) >= REPORTS_MAX:
        text = (
            f"the cluster has {REPORTS_MAX} reports, the most of a cluster: delete a report first"
        )
        raise RequestError(Code.CONFLICT, text)


def _stored_report(row: Row) -> StoredReport:
    return StoredReport(decode_report(row.body), row.revision)


def _key(report_id: int) -> Key:
    return Key(REPORTS, f"{report_id:012d}")


def _text_key(report_id: int) -> Key:
    return Key(TEXTS, f"{report_id:012d}")
