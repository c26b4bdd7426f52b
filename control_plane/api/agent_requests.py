"""The request bodies of agents, checked: a trial may have written any of it."""

import logging
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticSerializationError, from_json, to_json

from control_plane.actors.messages.agent import LOOPBACK
from control_plane.agents.reports import Report
from control_plane.agents.service import SyncRequest
from control_plane.agents.sessions import LogChunk
from control_plane.errors import invalid
from control_plane.text_forms import text_form
from detcloud.shared.json_depth import JSON_DEPTH_MAX, is_too_deep

log = logging.getLogger(__name__)

ALLOCATIONS_MAX = 30
KNOWN_MAX = 2_000
LINES_MAX = 20_000
LINE_BYTES_MAX = 256 * 1024
# Reports of one trial become one row, and a row holds 400 KiB.
PORTION_BYTES_MAX = 320 * 1024
SLOTS_MAX = 1024
# Of the descriptions of an agent's slots: they are in one row with the allocations that it has.
SLOTS_BYTES_MAX = 256 * 1024
MARKS_MAX = 1024

ADDRESS = text_form(
    r"^[A-Za-z0-9]([A-Za-z0-9.:-]{0,251}[A-Za-z0-9])?$|^::1$",
    "a host name, an IPv4 or an IPv6 address",
)
AGENT_NAME = text_form(
    r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$",
    "at most 63 letters, digits and ._-, of which the first is a letter or a digit",
)

_COUNT_MAX = 2**53

AllocationName = Annotated[
    str,
    Field(pattern=text_form(r"^[1-9][0-9]{0,11}\.[1-9][0-9]{0,7}$", "an allocation, like 12.3")),
]
Writer = Annotated[
    str, Field(pattern=text_form(r"^[A-Za-z0-9_-]{1,32}$", "1 to 32 letters, digits, - and _"))
]
Offset = Annotated[int, Field(ge=0, le=_COUNT_MAX)]
LogMark = Annotated[list[Offset], Field(min_length=2, max_length=2)]
ShortText = Annotated[str, Field(max_length=200)]


class AgentBody(BaseModel):
    """A body that an agent sends. Unknown fields are ignored, so that an agent may be newer."""

    model_config = ConfigDict(strict=True)


class Slot(AgentBody):
    """A device of the agent."""

    id: Annotated[int, Field(ge=0, le=1_000_000)]
    type: Literal["cpu", "cuda"]
    uuid: ShortText
    name: ShortText


class Enrolment(AgentBody):
    """The body of `POST /agents`."""

    name: Annotated[str, Field(pattern=AGENT_NAME)]
    resource_pool: Annotated[str, Field(min_length=1, max_length=100)]
    slots: Annotated[list[Slot], Field(max_length=SLOTS_MAX)]
    version: ShortText = ""
    label: ShortText = ""
    address: Annotated[str, Field(pattern=ADDRESS)] = LOOPBACK
    runtime: ShortText = ""


def slot_tuples(enrolment: Enrolment) -> tuple[tuple[int, str, str, str], ...]:
    """The id, type, UUID and name of each slot of an enrolment.

    Raises:
        RequestError: invalid, for slots that together say more than a row can keep.
    """
    slots = tuple((slot.id, slot.type, slot.uuid, slot.name) for slot in enrolment.slots)
    size = len(to_json(slots))
    if size > SLOTS_BYTES_MAX:
        raise invalid("slots", f"have {size} bytes in all, the limit is {SLOTS_BYTES_MAX}")
    return slots


class ReportLine(AgentBody):
    """A line that a writer of an allocation reported; `offset`: the byte after it."""

    allocation: AllocationName
    writer: Writer
    offset: Offset
    line: dict[str, Any]


class LogText(AgentBody):
    """A piece of an allocation's log. `offset`: the byte of its first character; `marks`: offsets
    and when they were first seen.
    """

    allocation: AllocationName
    offset: Offset
    text: str
    marks: Annotated[list[LogMark], Field(max_length=MARKS_MAX)] = []


class MachineNotice(AgentBody):
    """A notice of the cloud: the machine ends then (epoch ms); None: it may be soon."""

    deadline_ms: Offset | None = None


class SyncBody(AgentBody):
    """The body of `POST /agents/{id}/sync`; see docs/agent-protocol.md."""

    epoch: Annotated[int, Field(ge=1, le=_COUNT_MAX)]
    seen: Offset = 0
    call: Offset = 0
    wait_ms: Annotated[int, Field(ge=0, le=600_000)] = 0
    known: Annotated[list[AllocationName], Field(max_length=KNOWN_MAX)] = []
    reports: Annotated[list[ReportLine], Field(max_length=LINES_MAX)] = []
    logs: Annotated[list[LogText], Field(max_length=ALLOCATIONS_MAX)] = []
    more: bool = False
    incarnation: ShortText = ""
    notice: MachineNotice | None = None


def sync_requests(body: SyncBody) -> tuple[SyncRequest, ...]:
    """The requests of a call: portions whose rows fit into the table, mostly one. A line that
    cannot be kept is acknowledged and dropped, and never stops the others.

    Raises:
        RequestError: invalid, for too many allocations.
    """
    names = {line.allocation for line in body.reports} | {text.allocation for text in body.logs}
    if len(names) > ALLOCATIONS_MAX:
        text = f"{len(names)} allocations in one call; the limit is {ALLOCATIONS_MAX}"
        raise invalid("reports", text)
    *former, last = _portions(body.reports)
    known = tuple(body.known)
    logs = tuple(_log_chunk(text) for text in body.logs)
    requests = [
        SyncRequest(body.epoch, known, tuple(reports), call=body.call) for reports in former
    ]
    # A trial's exit is its last report, and its log is complete by then.
    return (*requests, SyncRequest(body.epoch, known, tuple(last), logs, body.call))


def _portions(lines: list[ReportLine]) -> list[list[Report]]:
    portions: list[list[Report]] = [[]]
    size = 0
    for one in lines:
        line, bytes_of_line = _encodable_line(one)
        if size + bytes_of_line > PORTION_BYTES_MAX and portions[-1]:
            portions.append([])
            size = 0
        size += bytes_of_line
        trial_id, _, epoch = one.allocation.partition(".")
        portions[-1].append(Report(int(trial_id), int(epoch), one.writer, one.offset, line))
    return portions


def _encodable_line(one: ReportLine) -> tuple[Mapping[str, Any], int]:
    """A line as JSON can hold it, with NaN and infinities as text, and its size in bytes; an empty
    one, which says nothing, in place of one that cannot be kept.
    """
    problem = f"is nested more than {JSON_DEPTH_MAX} levels deep" if is_too_deep(one.line) else ""
    encoded = b""
    if not problem:
        try:
            encoded = to_json(one.line, inf_nan_mode="strings")
        except PydanticSerializationError:
            problem = "contains text that is not valid Unicode"
    if len(encoded) > LINE_BYTES_MAX:
        problem = f"has {len(encoded)} bytes, the limit is {LINE_BYTES_MAX}"
    if problem:
        place = f"the line of {one.allocation}'s writer {one.writer} before byte {one.offset}"
        log.warning("%s was dropped: it %s", place, problem)
        # Without its exit a trial would hold its slots for ever.
        is_exit = one.writer == "agent" and one.line.get("kind") == "exited"
        return ({"kind": "exited"} if is_exit else {}), 0
    is_plain = b"NaN" not in encoded and b"Infinity" not in encoded
    return (one.line if is_plain else dict(from_json(encoded))), len(encoded)


def _log_chunk(piece: LogText) -> LogChunk:
    # Half of a surrogate pair, which only a hostile agent sends, must not stop the call.
    text = piece.text.encode("utf-8", "surrogatepass")
    marks = tuple((offset, time_ms) for offset, time_ms in piece.marks)
    return LogChunk(piece.allocation, piece.offset, text, marks)
