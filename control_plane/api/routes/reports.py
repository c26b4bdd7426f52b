"""Routes of reports, which users write for other users."""

from functools import partial
from typing import Annotated, Any, Literal

from fastapi import Path, Response
from pydantic import Field

from control_plane.access.ownership import Action, FindOwned
from control_plane.access.principals import USER_ROLES
from control_plane.api.dependencies import IdempotencyParameter, PageParameters, ServicesParameter
from control_plane.api.owned_objects import only_own
from control_plane.api.request_body import RequestBody
from control_plane.api.responses import answer_response
from control_plane.api.route_guards import Caller, guarded_router, require_role
from control_plane.errors import Code, RequestError
from control_plane.queries.answer import Answer
from control_plane.queries.pages import Page
from control_plane.text_forms import text_form
from control_plane.usecases.idempotency import ExtraWrites
from control_plane.usecases.reports import (
    TEXT_BYTES_MAX,
    ReportContent,
    Sharing,
    StoredReport,
    change_report,
    create_report,
    delete_report,
    find_owned_report,
    list_reports,
    load_report,
)

router = guarded_router("reports")

ReportId = Annotated[int, Path(ge=1, le=10**12 - 1)]
Title = Annotated[
    str,
    Field(
        pattern=text_form(
            r"^[^\s\p{C}](?:[^\p{C}]{0,198}[^\s\p{C}])?$",
            "1 to 200 printable characters, of which the first and the last are no spaces",
        )
    ),
]
Text = Annotated[str, Field(max_length=TEXT_BYTES_MAX)]
SharingWord = Literal["private", "read", "edit"]


class NewReportBody(RequestBody):
    """The body of `POST /reports`; docs/api.md describes the fields."""

    title: Title
    text: Text = ""
    sharing: SharingWord = "private"


class ReportBody(RequestBody):
    """The body of `PUT /reports/{id}`. `revision` is the revision that the caller read."""

    title: Title
    text: Text
    sharing: SharingWord
    revision: Annotated[int, Field(ge=1, lt=2**53)]


class ReportSummary(Answer):
    """A report without the text. `user` is the owner, and `updated_by` made the last change."""

    id: int
    title: str
    user: str
    sharing: SharingWord
    revision: int
    created_ms: int
    updated_ms: int
    updated_by: str


class Report(ReportSummary):
    """A report."""

    text: str


def _report_to_change(
    report_id: ReportId, caller: Caller, services: ServicesParameter
) -> FindOwned:
    return partial(find_owned_report, services.table, report_id, caller, Action.CHANGE)


def _report_to_delete(
    report_id: ReportId, caller: Caller, services: ServicesParameter
) -> FindOwned:
    return partial(find_owned_report, services.table, report_id, caller, Action.DELETE)


@router.get("/reports")
@require_role(*USER_ROLES)
def list_all(
    caller: Caller, services: ServicesParameter, page: PageParameters
) -> Page[ReportSummary]:
    """List the caller's reports and the shared reports of other users, newest first."""
    reports, cursor = list_reports(services.table, caller, page)
    return Page(items=[_summary(report) for report in reports], next_cursor=cursor)


@router.get("/reports/{report_id}")
@require_role(*USER_ROLES)
def describe(report_id: ReportId, caller: Caller, services: ServicesParameter) -> Report:
    """Return a report with the text.

    Errors: `not_found` for an unknown report, or another user's private report. Admins read private
    reports too.
    """
    report, text = load_report(services.table, report_id, caller)
    return Report(**_summary(report).model_dump(), text=text)


@router.post("/reports", status_code=201, response_model=ReportSummary)
@require_role(*USER_ROLES, changes=only_own)
def create(
    body: NewReportBody,
    caller: Caller,
    request: IdempotencyParameter,
    services: ServicesParameter,
) -> Response:
    """Create a report of the caller, and return the report without the text.

    Errors: `too_large` for a text of more than 64 KiB. `conflict` if the cluster has 500 reports.
    `unavailable` if other requests keep creating reports.
    """
    content = _checked_content(body)
    now_ms = services.now_ms()

    def effect(extra_writes: ExtraWrites) -> object:
        report = create_report(
            services.table, content, caller, now_ms, lambda report: extra_writes(_reply(report))
        )
        return _reply(report)

    return answer_response(request.execute(services, effect, _summary_from_reply, 201))


@router.put("/reports/{report_id}", response_model=ReportSummary)
@require_role(*USER_ROLES, changes=_report_to_change)
def change(
    report_id: ReportId,
    body: ReportBody,
    caller: Caller,
    request: IdempotencyParameter,
    services: ServicesParameter,
) -> Response:
    """Replace title, text and sharing of a report, and return the report without the text.

    Errors: `not_found` as for the report. `forbidden` for another user's report that is not shared
    for editing, and for a change of another user's sharing. `conflict`, with the user who changed
    the report, if it does not have the `revision`. `too_large` for a text of more than 64 KiB.
    """
    content = _checked_content(body)
    now_ms = services.now_ms()

    def effect(extra_writes: ExtraWrites) -> object:
        report = change_report(
            services.table,
            report_id,
            content,
            body.revision,
            caller,
            now_ms,
            lambda report: extra_writes(_reply(report)),
        )
        return _reply(report)

    return answer_response(request.execute(services, effect, _summary_from_reply))


@router.delete("/reports/{report_id}", response_model=ReportSummary)
@require_role(*USER_ROLES, changes=_report_to_delete)
def delete(
    report_id: ReportId,
    caller: Caller,
    request: IdempotencyParameter,
    services: ServicesParameter,
) -> Response:
    """Delete a report, and return the deleted report without the text.

    Errors: `not_found` as for the report. `forbidden` for another user's report, except for admins.
    `unavailable` if other requests keep changing the report.
    """

    def effect(extra_writes: ExtraWrites) -> object:
        report = delete_report(
            services.table, report_id, caller, lambda report: extra_writes(_reply(report))
        )
        return _reply(report)

    return answer_response(request.execute(services, effect, _summary_from_reply))


def _checked_content(body: NewReportBody | ReportBody) -> ReportContent:
    """Return the content of a body. Raise RequestError too_large for too many bytes of text."""
    size = len(body.text.encode())
    if size > TEXT_BYTES_MAX:
        text = f"the text has {size} bytes; a report has at most {TEXT_BYTES_MAX}: shorten the text"
        raise RequestError(Code.TOO_LARGE, text)
    return ReportContent(body.title, body.text, Sharing(body.sharing))


def _reply(report: StoredReport) -> dict[str, Any]:
    return _summary(report).model_dump()


def _summary_from_reply(reply: dict[str, Any]) -> ReportSummary:
    return ReportSummary(**reply)


def _summary(report: StoredReport) -> ReportSummary:
    return ReportSummary(**vars(report.record) | {"revision": report.revision})
