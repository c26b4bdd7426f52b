"""The agent's session with the cluster: enrol, then one sync call after the other.

The session stores nothing that matters: offsets and desired state come with every answer, so that
lost, repeated and late answers need no care beyond taking the newest revision.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from detcloud.agent.sync.fault_search import FaultSearch, RefusedPart
from detcloud.agent.sync.payload import FairPacker, SyncPayload
from detcloud.shared.http import ApiError, Transport, Unreachable, backoff_seconds
from detcloud.shared.notices import Notice

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from detcloud.agent.node import Node
    from detcloud.agent.slots import Slot
    from detcloud.agent.sync.schedule import SyncSchedule

HOLD_MS = 20_000
CALL_SECONDS = 15.0
FENCED_SECONDS_MAX = 15.0
QUIET_SECONDS = 0.2
STALLED_SECONDS = 1.0
INTERNAL_ERROR = 500
FAILED = "it failed each time, but other calls succeed"


@dataclass(frozen=True, slots=True)
class AgentIdentity:
    """The fields with which an agent enrols."""

    name: str
    resource_pool: str
    slots: Sequence[Slot]
    version: str
    label: str
    address: str
    runtime: str = ""


@dataclass(frozen=True, slots=True)
class Enrolment:
    """The cluster's answer: the agent's id, the epoch that fences it, the lease's length, and the
    incarnation of the cluster's state.
    """

    agent_id: str
    epoch: int
    lease_ms: int
    incarnation: str


class EnrolmentRefused(Exception):
    """The cluster refused this agent, and a repeat would not change that."""


class Session:
    """The thread that syncs until the schedule is stopped; `refusal` says why it gave up."""

    def __init__(
        self,
        url: str,
        join_token: str,
        identity: AgentIdentity,
        node: Node,
        schedule: SyncSchedule,
        log_line: Callable[[str], None],
        on_answer: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_answer` is called whenever the cluster has answered a sync."""
        self._url = url
        self._join_token = join_token
        self._identity = identity
        self._node = node
        self._schedule = schedule
        self._log_line = log_line
        self._on_answer = on_answer
        self._client = Transport(url, None)
        self._enrolment: Enrolment | None = None
        self._ever_enrolled = False
        self._revision_seen = 0
        self._calls = 0
        self._stalls = 0
        self._refusals = 0
        # How long the cluster asks to wait between two calls.
        self._pause_seconds = 0.0
        self._fault_search = FaultSearch()
        self._packer = FairPacker()
        self.refusal: str | None = None
        # The notice of the machine's end to be reported, and those reported before.
        self._notice: dict[str, int] | None = None
        # The end of this machine as the cluster knows it; None: it knows of none.
        self.announced_end: Notice | None = None
        self._reported_notices: list[dict[str, int]] = []

    @property
    def token(self) -> str | None:
        """The agent's token, for model code."""
        return self._client.token

    def report_notice(self, deadline_ms: int | None) -> None:
        """Report to the cluster, once, when this machine ends; None: that its end is likely."""
        notice = {} if deadline_ms is None else {"deadline_ms": deadline_ms}
        if notice != self._notice and notice not in self._reported_notices:
            self._notice = notice
            self._schedule.request_sync(urgent=True)

    def run(self) -> None:
        """Enrol and sync until stopped."""
        failures = 0
        while not self._schedule.is_stopped:
            try:
                if self._enrolment is None:
                    self._enrolment = self._enrol()
                self._sync_once(self._enrolment)
                failures = 0
            except EnrolmentRefused as refusal:
                self.refusal = str(refusal)
                break
            except Exception as error:
                failures += 1
                if failures == 1 or not isinstance(error, Unreachable):
                    self._log_line(f"the cluster did not accept the sync, trying again: {error}")
                self._schedule.pause(backoff_seconds(failures))
        self._client.close()

    def _enrol(self) -> Enrolment:
        body = {**asdict(self._identity), "slots": [asdict(s) for s in self._identity.slots]}
        client = Transport(self._url, self._join_token)
        try:
            answer = client.request("POST", "/api/v1/agents", body, retry=False)
        except ApiError as error:
            if error.status in (401, 403, 404, 422) and not self._ever_enrolled:
                raise EnrolmentRefused(f"the cluster refused the agent: {error.message}") from error
            raise
        finally:
            client.close()
        enrolment = Enrolment(
            str(answer["agent_id"]),
            int(answer["epoch"]),
            answer["lease_ms"],
            str(answer.get("incarnation", "")),
        )
        self._drop_other_incarnation(enrolment.incarnation)
        self._client.close()
        self._client = Transport(self._url, str(answer["token"]))
        self._ever_enrolled, self._revision_seen = True, 0
        self._node.forget_offsets()
        self._log_line(f"enrolled as {enrolment.agent_id}, epoch {enrolment.epoch}")
        return enrolment

    def _sync_once(self, enrolment: Enrolment) -> None:
        """Pack, call, apply, and wait as long as the cluster asks or until a sync is due."""
        # The first call brings the acknowledged offsets: nothing may be packed before.
        first = any(allocation.acked is None for allocation in self._node.allocations())
        if self._can_defer_payload(first):
            payload = SyncPayload()
        else:
            self._schedule.begin_packing()
            payload = self._pack_payload()
        began = time.monotonic()
        idle = payload.is_empty and not first and not self._fault_search.is_probing
        hold_ms = min(HOLD_MS, enrolment.lease_ms // 3) if idle else 0
        answer = self._send_payload(enrolment, payload, hold_ms)
        if answer is None:
            return
        changed = self._apply_answer(answer)
        quick = bool(hold_ms) and not changed and time.monotonic() - began < QUIET_SECONDS
        self._wait_for_next_sync(answer, payload, quick=quick)

    def _can_defer_payload(self, first: bool) -> bool:
        """Whether everything new may wait for the next regular call.

        A cluster whose table bills each row then writes a few larger rows.
        """
        if first or self._fault_search.is_probing or self._pause_seconds <= 0:
            return False
        return self._schedule.can_defer(self._pause_seconds)

    def _pack_payload(self) -> SyncPayload:
        ready = [a for a in self._node.allocations() if a.acked is not None]
        throttled = [a for a in ready if a.is_throttled]
        if throttled:
            self._schedule.request_sync(urgent=False)
        sources = [a for a in ready if a not in throttled]
        payload = self._packer.pack(sources, self._fault_search.entries_max)
        if not payload.more:
            for allocation in sources:
                allocation.has_priority = False
        return payload

    def _send_payload(
        self, enrolment: Enrolment, payload: SyncPayload, hold_ms: int
    ) -> dict[str, Any] | None:
        """Send the payload; the answer, or None if another call should follow at once."""
        self._calls += 1
        notice = self._notice
        envelope: dict[str, Any] = {
            "epoch": enrolment.epoch,
            "call": self._calls,
            "seen": self._revision_seen,
            "incarnation": enrolment.incarnation,
            "wait_ms": 0 if notice is not None else hold_ms,
            **({} if notice is None else {"notice": notice}),
        }
        body = payload.encode_body(envelope, self._node.allocation_ids())
        path = f"/api/v1/agents/{enrolment.agent_id}/sync"
        timeout_seconds = CALL_SECONDS + hold_ms / 1000
        if hold_ms:
            self._schedule.begin_held_call(self._client)
        try:
            answer = self._client.request(
                "POST", path, body, retry=False, timeout_seconds=timeout_seconds
            )
        except Unreachable:
            if hold_ms and self._schedule.end_held_call():
                return None
            raise
        except ApiError as error:
            self._handle_refusal(error, payload)
            return None
        finally:
            self._schedule.end_held_call()
        if not isinstance(answer, dict):
            raise Unreachable(f"{self._url} answered a sync with {type(answer).__name__}")
        self._refusals = 0
        self._give_up(self._fault_search.record_success(payload), FAILED)
        if notice is not None:
            self._reported_notices.append(notice)
            self._notice = None if self._notice is notice else self._notice
        self._on_answer()
        return answer

    def _handle_refusal(self, error: ApiError, payload: SyncPayload) -> None:
        if error.status == 409:
            self._log_line(
                "another agent enrolled under this name: stopping all trials, enrolling again"
            )
            self._stop_fenced("another session of its agent began")
        elif error.status in (401, 404):
            self._log_line("the cluster no longer knows this agent, enrolling again")
        elif error.status in (413, 422) and not payload.is_empty:
            self._give_up(self._fault_search.record_refusal(payload), error.message)
            return
        else:
            if error.status == INTERNAL_ERROR:
                self._fault_search.record_failure(payload)
            raise error
        self._enrolment = None
        self._schedule.pause(backoff_seconds(1))

    def _drop_other_incarnation(self, incarnation: str) -> None:
        """Drop every trial where they are of another incarnation of the cluster's state, which
        gives their names again. Raises OSError where one does not end.
        """
        if not self._node.belongs_to(incarnation):
            reason = "the cluster was restored from an older copy of its state"
            self._log_line(f"{reason}: dropping all trials")
            self._stop_fenced(reason)
        self._node.join(incarnation)

    def _stop_fenced(self, reason: str) -> None:
        """End all trials before anything else: they may run elsewhere by now."""
        self._node.fence(reason)
        give_up_at = time.monotonic() + FENCED_SECONDS_MAX
        while self._node.has_active_allocations() and time.monotonic() < give_up_at:
            self._schedule.pause(0.05)

    def _give_up(self, part: RefusedPart | None, reason: str) -> None:
        """Send a part no more that the cluster does not take, if there is one."""
        if part is None:
            return
        self._log_line(
            f"the cluster did not accept what {part.writer} of {part.allocation} wrote: {reason}"
        )
        for allocation in self._node.allocations():
            if allocation.allocation == part.allocation:
                allocation.replace_refused(part.writer, part.offset)
        self._refusals += 1
        self._schedule.pause(backoff_seconds(self._refusals))

    def _apply_answer(self, answer: dict[str, Any]) -> bool:
        """Take over offsets and the desired state; whether that has changed."""
        self._node.acknowledge(answer["acked"], answer["logs_acked"])
        revision = int(answer["revision"])
        changed = revision != self._revision_seen
        for entry in answer["desired"]:
            self._node.apply_desired_entry(entry)
        self._revision_seen = revision
        self.announced_end = _parse_notice(answer.get("notice"))
        return changed

    def _wait_for_next_sync(
        self, answer: dict[str, Any], payload: SyncPayload, *, quick: bool
    ) -> None:
        for allocation in self._node.allocations():
            allocation.charge_lines(payload.lines.get(allocation.allocation, 0))
        if payload.sent and not _has_progressed(answer, payload):
            self._stalls += 1
            self._schedule.pause(STALLED_SECONDS + backoff_seconds(self._stalls))
            return
        self._stalls = 0
        if payload.more:
            return
        seconds = self._pause_seconds = max(0.0, float(answer.get("next_sync_ms", 0)) / 1000)
        if "patient_ms" in answer:
            self._schedule.defer_seconds = max(0.0, float(answer["patient_ms"]) / 1000)
        if payload.is_empty and quick:
            # A cluster that neither holds calls nor names a pause must not be called in a loop.
            seconds = max(seconds, QUIET_SECONDS)
        self._schedule.wait_until_due(seconds)


def _parse_notice(fields: object) -> Notice | None:
    """The notice in an answer; anything else is none, as of a cluster that never sends one."""
    if not isinstance(fields, dict) or not isinstance(fields.get("deadline_ms"), int):
        return None
    return Notice(
        fields["deadline_ms"], str(fields.get("reason") or "the machine is being taken away")
    )


def _has_progressed(answer: dict[str, Any], payload: SyncPayload) -> bool:
    """Whether the cluster took any part of the payload."""
    for (allocation, writer), offset in payload.sent.items():
        if writer == "log":
            acked = answer["logs_acked"].get(allocation, 0)
        else:
            acked = answer["acked"].get(allocation, {}).get(writer, 0)
        if acked >= offset:
            return True
    return False
