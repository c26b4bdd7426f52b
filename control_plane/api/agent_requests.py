"""Models of agents' request bodies, and the conversion to requests for the agent service.

Training code may have written any part of a body. Limits therefore apply to all fields.
"""

import logging
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_json

from control_plane.actors.messages.agent import LOOPBACK
from control_plane.agents.fault_reports import FaultReport
from control_plane.agents.reports import Report
from control_plane.agents.sessions import LogChunk
from control_plane.agents.sync_acceptance import SyncRequest
from control_plane.errors import invalid
from control_plane.json_gate import JsonRefused, storable_line
from control_plane.text_forms import text_form

log = logging.getLogger(__name__)

ALLOCATIONS_MAX = 30
KNOWN_MAX = 2_000
LINES_MAX = 20_000
LINE_BYTES_MAX = 256 * 1024
# The reports of a trial in a portion become a single row, and a row holds at most 400 KiB.
PORTION_BYTES_MAX = 320 * 1024
CACHED_MAX = 100
SLOTS_MAX = 1024
# The descriptions of an agent's slots share a row with the agent's allocations.
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
INSTALLATION = text_form(r"^[0-9a-f]{0,32}$", "at most 32 hexadecimal digits in lower case")
DIGEST = text_form(r"^([0-9a-f]{64})?$", "a SHA-256 in lower case, or nothing")
ONLY_USER = text_form(r"^(\d{1,10}:\d{1,10})?$", "UID:GID, or nothing")

_COUNT_MAX = 2**53

AllocationName = Annotated[
    str,
    Field(pattern=text_form(r"^[1-9][0-9]{0,11}\.[1-9][0-9]{0,7}$", "an allocation, like 12.3")),
]
Writer = Annotated[
    str, Field(pattern=text_form(r"^[A-Za-z0-9_-]{1,32}$", "1 to 32 letters, digits, - and _"))
]
Offset = Annotated[int, Field(ge=0, le=_COUNT_MAX)]
ExperimentNumber = Annotated[int, Field(ge=1, le=_COUNT_MAX)]
LogMark = Annotated[list[Offset], Field(min_length=2, max_length=2)]
ShortText = Annotated[str, Field(max_length=200)]


class AgentBody(BaseModel):
    """The base of the models of agents' request bodies.

    Unknown fields are ignored, so that an agent may be newer than the cluster. A value of a wrong
    type is refused.
    """

    model_config = ConfigDict(strict=True)


class Slot(AgentBody):
    """A slot of the agent: a GPU or CPU device."""

    id: Annotated[int, Field(ge=0, le=1_000_000)]
    type: Literal["cpu", "cuda", "rocm", "mps"]
    uuid: ShortText
    name: ShortText
    memory_mib: Annotated[int, Field(ge=0, le=2**31)] = 0
    """The memory of the device. 0: unknown, or an older agent."""


class OccupancyBody(AgentBody):
    """The use of the agent's machine by people: the reason, and the rule for running trials."""

    reason: ShortText
    running: Literal["finish", "checkpoint"] = "finish"

    @property
    def report(self) -> tuple[str, bool]:
        """The reason, and whether running trials leave."""
        return self.reason, self.running == "checkpoint"


class Enrolment(AgentBody):
    """The body of `POST /agents`; docs/agent-protocol.md describes the fields."""

    name: Annotated[str, Field(pattern=AGENT_NAME)]
    resource_pool: Annotated[str, Field(min_length=1, max_length=100)]
    slots: Annotated[list[Slot], Field(max_length=SLOTS_MAX)]
    version: ShortText = ""
    label: ShortText = ""
    address: Annotated[str, Field(pattern=ADDRESS)] = LOOPBACK
    runtime: ShortText = ""
    installation: Annotated[str, Field(pattern=INSTALLATION)] = ""
    occupancy: OccupancyBody | None = None
    """The present use of the machine by people. None: nobody uses the machine."""
    credential_sha256: Annotated[str, Field(pattern=DIGEST)] = ""
    code: Annotated[str, Field(pattern=DIGEST)] = ""
    only_user: Annotated[str, Field(pattern=ONLY_USER)] = ""


def slot_tuples(enrolment: Enrolment) -> tuple[tuple[int, str, str, str], ...]:
    """Return the id, type, UUID and name of each slot of an enrolment.

    Raises:
        RequestError: invalid, if the slots together have more than SLOTS_BYTES_MAX bytes as JSON.
    """
    slots = tuple((slot.id, slot.type, slot.uuid, slot.name) for slot in enrolment.slots)
    size = len(to_json(slots))
    if size > SLOTS_BYTES_MAX:
        raise invalid("slots", f"have {size} bytes in all, the limit is {SLOTS_BYTES_MAX}")
    return slots


def slot_memories(enrolment: Enrolment) -> tuple[int, ...]:
    """Return the memory of each slot of an enrolment in MiB. Empty if all are unknown."""
    memories = tuple(slot.memory_mib for slot in enrolment.slots)
    return memories if any(memories) else ()


class ReportLine(AgentBody):
    """A line that a writer of an allocation reported.

    `writer` is the rank of a process, or `agent`. `offset` is the offset of the byte after the line
    in the writer's reports.
    """

    allocation: AllocationName
    writer: Writer
    offset: Offset
    line: dict[str, Any]


class LogText(AgentBody):
    """A piece of an allocation's log.

    `offset` is the offset of the first byte of `text`. Each of `marks` is an offset and the time
    (epoch ms) at which the agent first saw the bytes from the offset on.
    """

    allocation: AllocationName
    offset: Offset
    text: str
    marks: Annotated[list[LogMark], Field(max_length=MARKS_MAX)] = []


class MachineNotice(AgentBody):
    """A notice that the agent's machine will end.

    `deadline_ms` is the end in epoch ms. Null is a recommendation of the cloud to leave the
    machine, which may end soon. `cause` is set if the machine ends itself: `dead_tick`.
    """

    deadline_ms: Offset | None = None
    cause: ShortText = ""


class Fault(AgentBody):
    """A fault of the agent's machine. `slot` is null for a fault of the whole machine.

    With `people`, the entry is no fault: people use the machine, and `people` is the rule for
    running trials. Clusters of older versions treat the entry as a fault of the machine.
    """

    slot: Annotated[int, Field(ge=0, le=1_000_000)] | None = None
    reason: ShortText
    people: Literal["finish", "checkpoint"] | None = None


class SyncBody(AgentBody):
    """The body of `POST /agents/{id}/sync`; docs/agent-protocol.md describes the fields."""

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
    faults: Annotated[list[Fault], Field(max_length=SLOTS_MAX)] | None = None
    """All present faults of the agent's machine. None: as in the last report."""
    cached: Annotated[list[ExperimentNumber], Field(max_length=CACHED_MAX)] = []
    """The experiments with packages in the agent's cache. The answer names the ended experiments.
    """


def fault_report(body: SyncBody) -> FaultReport | None:
    """Return the faults and the use by people in a sync call. None without a report."""
    if body.faults is None:
        return None
    people = next((fault for fault in body.faults if fault.people is not None), None)
    return FaultReport(
        tuple((fault.slot, fault.reason) for fault in body.faults if fault.people is None),
        None if people is None else (people.reason, people.people == "checkpoint"),
    )


def sync_requests(body: SyncBody) -> tuple[SyncRequest, ...]:
    """Convert the body of a sync call to requests for the agent service, which run in order.

    Divide the reports into portions of at most PORTION_BYTES_MAX bytes, a request each, so that a
    portion's rows fit into the table. A call without reports becomes a single request. The last
    request also has the logs. A line that cannot be stored is logged, and replaced by an empty line
    or an exit without details. The agent then does not send the line again.

    Raises:
        RequestError: invalid, if reports and logs name more than ALLOCATIONS_MAX allocations.
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
    # The logs accompany the last reports: an exit is a trial's last report, after the whole log.
    return (*requests, SyncRequest(body.epoch, known, tuple(last), logs, body.call))


def _portions(lines: list[ReportLine]) -> list[list[Report]]:
    portions: list[list[Report]] = [[]]
    size = 0
    for one in lines:
        line, bytes_of_line = _storable_line(one)
        if size + bytes_of_line > PORTION_BYTES_MAX and portions[-1]:
            portions.append([])
            size = 0
        size += bytes_of_line
        trial_id, _, epoch = one.allocation.partition(".")
        portions[-1].append(Report(int(trial_id), int(epoch), one.writer, one.offset, line))
    return portions


def _storable_line(one: ReportLine) -> tuple[Mapping[str, Any], int]:
    """Return a line in a form that a row can store, and the size as JSON in bytes.

    For a line that cannot be stored, log the reason, and return an empty line with the size 0. An
    empty line reports nothing. Return `{"kind": "exited"}` with the size 0 in place of an exit that
    the agent reported.
    """
    try:
        return storable_line(one.line, LINE_BYTES_MAX)
    except JsonRefused as refused:
        place = f"the line of {one.allocation}'s writer {one.writer} before byte {one.offset}"
        log.warning("%s was dropped: it %s", place, refused.message)
        # Without the exit, the trial would hold slots for ever.
        is_exit = one.writer == "agent" and one.line.get("kind") == "exited"
        return ({"kind": "exited"} if is_exit else {}), 0


def _log_chunk(piece: LogText) -> LogChunk:
    # Half of a surrogate pair, which only a hostile agent sends, must not fail the call.
    text = piece.text.encode("utf-8", "surrogatepass")
    marks = tuple((offset, time_ms) for offset, time_ms in piece.marks)
    return LogChunk(piece.allocation, piece.offset, text, marks)
