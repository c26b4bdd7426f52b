"""The recorder of a journey, and the observers: a table, a cloud and the steps of actor types."""

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from control_plane.actors.step import StepContext
from control_plane.engine.actor_types import ACTOR_TYPES, ActorType, actor_type_at
from control_plane.engine.head import HEAD, PARTS
from control_plane.engine.journal import JOURNAL
from control_plane.engine.mailbox import MAIL, TIMERS, read_mail
from control_plane.fleet.records import IntentRow
from control_plane.state.table import Check, Put, Row, StateTable, Write
from provisioner.clouds.fake.provider import FakeCloud
from provisioner.clouds.provider import CloudInstance
from simulator.faults.table_faults import TableDecorator
from tests.tour.handlers import Place, decisions_of, file_of, handler_of, place_of, record_call

PRODUCT = ("control_plane/", "provisioner/", "lambdas/", "local_cluster/")
# Folders that carry out the writes of other folders.
CARRIERS = ("control_plane/state/", "control_plane/engine/", "provisioner/ledger.py")
# Digests and UUIDs in sort keys, some of which are random.
LONG_NAME = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{32,}")

StepFunction = Callable[[Any, Any, StepContext], Any]
EndFunction = Callable[[Any, StepContext], Any]


@dataclass
class Hop:
    """A hop of a journey."""

    text: str
    """The message and its receiver, or the action."""
    place: Place | None = None
    """The function that handled the hop."""
    decisions: Sequence[Place] = ()
    """The search methods and schedulers that the handler asked."""
    rows: dict[str, list[str]] = field(default_factory=dict)
    """The rows that the commit after this hop wrote, by partition."""


class Recorder:
    """The hops of a journey, in order. Nothing is recorded outside `record`."""

    def __init__(self) -> None:
        self.hops: list[Hop] = []
        self._folded: list[Hop] = []
        self._is_on = False

    @contextmanager
    def record(self) -> Iterator[None]:
        """Record the hops of the block."""
        functions = [(kind, kind.step, kind.finish_fold) for kind in ACTOR_TYPES.values()]
        self._is_on = True
        try:
            for kind, step, end in functions:
                _replace(kind, self._recording_step(step), end and self._recording_end(end))
            yield
        finally:
            self._is_on = False
            for kind, step, end in functions:
                _replace(kind, step, end)

    def add(self, text: str, place: Place | None = None) -> Hop:
        """Add a hop without a commit, and return the hop."""
        hop = Hop(text, place)
        if self._is_on:
            self.hops.append(hop)
        return hop

    def add_commit(self, writes: Sequence[Write]) -> None:
        """Add the hops that were folded since the last commit, with the rows of this commit.

        A commit without folded messages becomes a hop of the function that asked for the commit.
        """
        if not self._is_on:
            return
        hops = self._folded or [Hop("write", _caller())]
        hops[-1].rows = _describe_rows(writes)
        self.hops += hops
        self._folded = []

    def _recording_step(self, step: StepFunction) -> StepFunction:
        """Return a function that calls `step` and records each message."""

        def record_step(state: Any, message: Any, context: StepContext) -> Any:
            after, call = record_call(step, state, message, context)
            text = f"{type(message).__name__} to {context.address}"
            self._folded.append(Hop(text, handler_of(call), decisions_of(call)))
            return after

        return record_step

    def _recording_end(self, end: EndFunction) -> EndFunction:
        """Return a function that calls `end` and records each end with decisions."""

        def record_end(state: Any, context: StepContext) -> Any:
            after, call = record_call(end, state, context)
            if decisions := decisions_of(call):
                text = f"end of the fold of {context.address}"
                self._folded.append(Hop(text, place_of(call.code), decisions))
            return after

        return record_end


class RecordingTable(TableDecorator):
    """A state table that reports each successful commit to a recorder."""

    def __init__(self, table: StateTable, recorder: Recorder) -> None:
        super().__init__(table)
        self._recorder = recorder

    def commit(self, writes: Sequence[Write]) -> None:
        """Apply all writes atomically, then record the writes."""
        super().commit(writes)
        self._recorder.add_commit(writes)


class RecordingCloud(FakeCloud):
    """The fake cloud, which reports launches and terminations to `recorder`."""

    recorder: Recorder
    """Must be set before the first use."""

    def launch(self, request: IntentRow) -> tuple[CloudInstance, ...]:
        """Launch machines by FakeCloud, and record the launch."""
        launched = super().launch(request)
        ids = ", ".join(instance.id for instance in launched)
        self.recorder.add(f"cloud launches {ids} ({request.offering.name})", _caller())
        return launched

    def terminate(self, ids: Sequence[str]) -> None:
        """End machines by FakeCloud, and record the end."""
        super().terminate(ids)
        self.recorder.add(f"cloud ends {', '.join(ids)}", _caller())


def _replace(kind: ActorType, step: StepFunction, end: EndFunction | None) -> None:
    """Replace the functions of an actor type, which is frozen for the product."""
    object.__setattr__(kind, "step", step)
    object.__setattr__(kind, "finish_fold", end)


def _caller() -> Place | None:
    """Return the innermost function of the product that is not a carrier of writes."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = file_of(frame.f_code)
        if file.startswith(PRODUCT) and not file.startswith(CARRIERS):
            return place_of(frame.f_code)
        frame = frame.f_back
    return None


def _describe_rows(writes: Sequence[Write]) -> dict[str, list[str]]:
    """Return the rows of a commit by partition; a deleted row begins with "-"."""
    rows = dict[str, list[str]]()
    for write in writes:
        if not isinstance(write, Check):
            text = (
                _describe_row(write) if isinstance(write, Put) else "-" + _row_kind(write.key.sort)
            )
            rows.setdefault(write.key.partition, []).append(text)
    return rows


def _describe_row(put: Put) -> str:
    """Return the kind of a row, for mail and timers with the types of the messages."""
    kind, address = _row_kind(put.key.sort), put.key.partition
    if not put.key.sort.startswith((MAIL, TIMERS)):
        return kind
    mail = read_mail(Row(put.key, put.revision, put.body))
    messages = [actor_type_at(address).decode_message(*message) for message in mail.messages]
    return f"{kind} {'+'.join(type(message).__name__ for message in messages)}"


def _row_kind(sort: str) -> str:
    """Return the kind of a row by sort key, or the sort key of a row outside of actors."""
    if sort == HEAD:
        return "head"
    kinds = {MAIL: "mail", TIMERS: "timer", JOURNAL: "journal"}
    for prefix, kind in kinds.items():
        if sort.startswith(prefix):
            return kind
    short = LONG_NAME.sub("…", sort)
    return f"part {short.removeprefix(PARTS)}" if sort.startswith(PARTS) else short
