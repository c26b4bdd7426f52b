"""The agent's session with the cluster, which enrols and then makes sync calls in sequence.

Every answer contains all offsets and the desired state. The session therefore needs no state of
its own, and lost, repeated and late answers do no harm.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from detcloud.agent.sync.enrolment import AgentIdentity, Enrolment, EnrolmentSender
from detcloud.agent.sync.fault_search import FaultSearch, RefusedPart
from detcloud.agent.sync.payload import FairPacker, SyncPayload
from detcloud.shared.dead_tick import TickWatch
from detcloud.shared.http import ApiError, Transport, Unreachable, backoff_seconds
from detcloud.shared.notices import Notice

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from detcloud.agent.credential import Credential
    from detcloud.agent.health.machine_fault import MachineFault
    from detcloud.agent.node import Node
    from detcloud.agent.people.people_watch import Occupancy
    from detcloud.agent.sync.schedule import SyncSchedule
    from detcloud.agent.tunnels import AgentTunnels

HOLD_MS = 20_000
CACHE_QUESTION_SECONDS = 60.0
CALL_SECONDS = 15.0
FENCED_SECONDS_MAX = 15.0
QUIET_SECONDS = 0.2
REASON_CHARACTERS_MAX = 200
STALLED_SECONDS = 1.0
# The cluster repeats the assignments that the node refuses, and asks for quick calls meanwhile.
REFUSING_SECONDS = 10.0
INTERNAL_ERROR = 500
FAILED = "it failed each time, but other calls succeed"


class EnrolmentRefused(Exception):
    """The cluster refused this agent permanently. The message is the reason."""


class Session:
    """A session with the cluster. `run` enrols and syncs until the schedule is stopped.

    `refusal` is the reason if the cluster refused the agent, else None. `announced_end` is the end
    of this machine that the cluster has announced, or None. `tick_watch` learns the age of the
    cluster's tick from each answer.
    """

    def __init__(
        self,
        url: str,
        join_token: str,
        identity: AgentIdentity,
        node: Node,
        schedule: SyncSchedule,
        log_line: Callable[[str], None],
        on_answer: Callable[[], None] = lambda: None,
        open_transport: Callable[[str, str | None], Transport] = Transport,
    ) -> None:
        """Create a session. Nothing is sent yet.

        Args:
            url: the cluster's API.
            join_token: the token for the enrolment.
            identity: the fields of the enrolment.
            node: the node's allocations, whose reports are sent.
            schedule: the times of the calls.
            log_line: writes to the agent's log.
            on_answer: called after each successful sync.
            open_transport: opens connections to a URL with a token.
        """
        self._url = url
        self._name = identity.name
        self._enrolling = EnrolmentSender(url, join_token, identity, open_transport)
        self._node = node
        self._schedule = schedule
        self._log_line = log_line
        self._on_answer = on_answer
        self._open_transport = open_transport
        self._client = open_transport(url, None)
        self._enrolment: Enrolment | None = None
        self._ever_enrolled = False
        self._revision_seen = 0
        self._calls = 0
        self._ask_at = 0.0
        self._stalls = 0
        self._refusals = 0
        # The pause between two calls that the cluster requests.
        self._pause_seconds = 0.0
        self._fault_search = FaultSearch()
        self._packer = FairPacker()
        self.refusal: str | None = None
        # The notice of the machine's end that remains to be reported.
        self._notice: dict[str, Any] | None = None
        self.announced_end: Notice | None = None
        self._reported_notices: list[dict[str, Any]] = []
        # The present faults of the machine, and the field that this session has reported.
        self._faults: tuple[MachineFault, ...] = ()
        self._reported_faults: list[dict[str, Any]] | None = None
        # The present use of the machine by people.
        self._occupancy: Occupancy | None = None
        self.tick_watch = TickWatch()
        # The code that the cluster's agents should run, as the last answer describes it.
        self.offered_code: dict[str, Any] | None = None
        # The tunnels to this node's trials. None before the first tunnel.
        self.tunnels: AgentTunnels | None = None

    @property
    def token(self) -> str | None:
        """The agent's current token for requests to the cluster. None before the enrolment."""
        return self._client.token

    def cut_moved_call(self) -> None:
        """Cut off the present call if this machine has lost the address of the connection.

        The call then fails, and the session enrols with the new address. Otherwise a call that the
        cluster holds would fail after the lease.
        """
        self._client.interrupt_if_moved()

    def use_machine(
        self, credential: Credential | None, find_address: Callable[[], str] | None
    ) -> None:
        """Enrol with the credential and the present address of the machine.

        Args:
            credential: the credential. None for an instance of a cloud.
            find_address: returns the present address. None for a fixed address.
        """
        self._enrolling.credential = credential
        self._enrolling.find_address = find_address

    def report_notice(self, deadline_ms: int | None, cause: str = "") -> bool:
        """Report the end of this machine with the next sync, which becomes due at once.

        Return whether the cluster has answered a sync with this notice. Then nothing is reported
        again.

        Args:
            deadline_ms: the end in epoch milliseconds. None reports that an end is likely.
            cause: why the machine ends itself, a word of the protocol. "" if the cloud ends the
                machine.
        """
        notice: dict[str, Any] = {} if deadline_ms is None else {"deadline_ms": deadline_ms}
        if cause:
            notice["cause"] = cause
        if notice in self._reported_notices:
            return True
        if notice != self._notice:
            self._notice = notice
            self._schedule.request_sync(urgent=True)
        return False

    def report_faults(self, faults: Sequence[MachineFault]) -> None:
        """Report the present faults of this machine with the next sync, which is due at once."""
        self._faults = tuple(faults)
        self._schedule.request_sync(urgent=True)

    def report_occupancy(self, occupancy: Occupancy | None) -> None:
        """Report the use of this machine by people with the next sync, which is due at once.

        None: nobody uses the machine. An enrolment has the present use, too, so that no work starts
        before the first sync.
        """
        self._occupancy = occupancy
        self._schedule.request_sync(urgent=True)

    def run(self) -> None:
        """Enrol and sync until the schedule is stopped or the cluster refuses the enrolment.

        Log errors and retry with growing pauses. A refusal is stored in `refusal`. Never raise.
        """
        failures = 0
        while not self._schedule.is_stopped:
            try:
                if failures and self._enrolling.has_moved():
                    self._log_line("this machine has another address, enrolling again")
                    self._enrolment = None
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
        occupancy = self._occupancy
        try:
            machine = None if occupancy is None else {"occupancy": occupancy.fields()}
            answer = self._enrolling.send(machine)
        except ApiError as error:
            if error.status in (401, 403, 404, 422) and not self._ever_enrolled:
                raise EnrolmentRefused(f"the cluster refused the agent: {error.message}") from error
            raise
        enrolment = Enrolment(
            str(answer["agent_id"]),
            int(answer["epoch"]),
            answer["lease_ms"],
            str(answer.get("incarnation", "")),
        )
        self._drop_other_incarnation(enrolment.incarnation)
        self._client.close()
        self._client = self._open_transport(self._url, str(answer["token"]))
        self._ever_enrolled, self._revision_seen = True, 0
        self._reported_faults = None
        self._node.forget_offsets()
        self._node.note_enrolment()
        self._log_line(f"enrolled as {enrolment.agent_id}, epoch {enrolment.epoch}")
        if (image := answer.get("image")) and not self._node.allocation_ids():
            needs_login = bool(answer.get("image_needs_login"))
            self._node.expect_image(str(image), needs_login=needs_login)
        return enrolment

    def _sync_once(self, enrolment: Enrolment) -> None:
        """Pack a payload, send the payload, apply the answer, and wait for the next sync.

        Raise an exception if the call fails and must be repeated after a pause.
        """
        # The first answer brings the acknowledged offsets, so the first call must be empty.
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
        """Whether the next call may be empty, because all new data may wait for a later call.

        True if new data waits and is not due within the pause that the cluster's last answer
        requested. False without new data or without a pause, during the search for a refused line,
        and with `first`: before the cluster has acknowledged offsets of every allocation.

        Fewer calls with more data cost less if the cluster's state table bills each row.
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
        """Send the payload in a sync call, and return the answer.

        Return None if another call must follow at once: the held call was cut off, or the cluster
        refused the payload or the session. `hold_ms` is the time that the cluster may hold the
        call. Raise Unreachable or ApiError if the call must be repeated after a pause.
        """
        self._calls += 1
        notice, faults = self._notice, _fault_fields(self._faults, self._occupancy)
        has_news = notice is not None or faults != self._reported_faults
        envelope: dict[str, Any] = {
            "epoch": enrolment.epoch,
            "call": self._calls,
            "seen": self._revision_seen,
            "incarnation": enrolment.incarnation,
            "wait_ms": 0 if has_news else hold_ms,
            **({} if notice is None else {"notice": notice}),
            **({} if faults == self._reported_faults else {"faults": faults}),
            **self._cache_question(),
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
        self._reported_faults = faults
        self._on_answer()
        return answer

    def _cache_question(self) -> dict[str, Any]:
        """Return the field `cached` with the experiments whose packages this machine keeps.

        The cluster answers with the ended experiments among them. Return {} within
        CACHE_QUESTION_SECONDS of the last question, or without cached experiments.
        """
        if time.monotonic() < self._ask_at:
            return {}
        self._ask_at = time.monotonic() + CACHE_QUESTION_SECONDS
        cached = self._node.cached_experiments()
        return {"cached": cached} if cached else {}

    def _handle_refusal(self, error: ApiError, payload: SyncPayload) -> None:
        if error.status == 409:
            self._log_line(f"{error.message}: stopping all lost trials, enrolling again")
            self._stop_fenced("the session of its agent ended")
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
        """Drop all trials of another incarnation of the cluster's state.

        The cluster would reuse the names of the trials. Record the new incarnation. Raise OSError
        if a trial does not end in time.
        """
        if not self._node.belongs_to(incarnation):
            reason = "the cluster was restored from an older copy of its state"
            self._log_line(f"{reason}: dropping all trials")
            self._stop_fenced(reason)
        self._node.join(incarnation)

    def _stop_fenced(self, reason: str) -> None:
        """Kill all trials, and wait up to FENCED_SECONDS_MAX for the end of all trials.

        The trials may already run on other machines.
        """
        self._node.fence(reason)
        give_up_at = time.monotonic() + FENCED_SECONDS_MAX
        while self._node.has_active_allocations() and time.monotonic() < give_up_at:
            self._schedule.pause(0.05)

    def _give_up(self, part: RefusedPart | None, reason: str) -> None:
        """Exclude a part that the cluster does not accept from later calls.

        Log the `reason` and pause. Do nothing if `part` is None.
        """
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
        """Apply the offsets, the desired state, the announced end and the tick's age of an answer.

        Return whether the revision of the desired state has changed. Packages of ended experiments
        are deleted.
        """
        self._node.acknowledge(answer["acked"], answer["logs_acked"])
        revision = int(answer["revision"])
        changed = revision != self._revision_seen
        for entry in answer["desired"]:
            self._node.apply_desired_entry(entry)
        self._revision_seen = revision
        self._node.forget_experiments([int(one) for one in answer.get("ended_experiments", ())])
        self.announced_end = _parse_notice(answer.get("notice"))
        self.tick_watch.record_age(answer.get("tick_age_ms"))
        self._apply_tunnels(answer.get("tunnels"))
        code = answer.get("code")
        self.offered_code = code if isinstance(code, dict) else None
        return changed

    def _apply_tunnels(self, entries: object) -> None:
        """Open the tunnels that an answer lists, and close all others."""
        if self.tunnels is None and not entries:
            return
        if self.tunnels is None:
            self.tunnels = self._open_tunnels()
        self.tunnels.apply(entries if isinstance(entries, list) else [])

    def _open_tunnels(self) -> AgentTunnels:
        # Imported with the first tunnel, so that an idle agent stays small.
        from detcloud.agent.tunnels import AgentTunnels

        return AgentTunnels(self._url, self._name, lambda: self.token, self._node, self._log_line)

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
            # Avoid a busy loop if the cluster neither holds calls nor requests a pause.
            seconds = max(seconds, QUIET_SECONDS)
        if self._node.refuses_new:
            seconds = max(seconds, REFUSING_SECONDS)
        self._schedule.wait_until_due(seconds)


def _fault_fields(
    faults: Sequence[MachineFault], occupancy: Occupancy | None
) -> list[dict[str, Any]]:
    """Return the field `faults` of a sync call.

    The use by people is an entry with `people`. Clusters of older versions treat it as a fault.
    """
    fields: list[dict[str, Any]] = [
        {"slot": fault.slot, "reason": fault.reason[:REASON_CHARACTERS_MAX]} for fault in faults
    ]
    if occupancy is not None:
        reason = occupancy.reason[:REASON_CHARACTERS_MAX]
        fields.append({"slot": None, "reason": reason, "people": occupancy.running})
    return fields


def _parse_notice(fields: object) -> Notice | None:
    """Parse the notice in an answer. Return None for a missing or malformed notice."""
    if not isinstance(fields, dict) or not isinstance(fields.get("deadline_ms"), int):
        return None
    return Notice(
        fields["deadline_ms"], str(fields.get("reason") or "the machine is being taken away")
    )


def _has_progressed(answer: dict[str, Any], payload: SyncPayload) -> bool:
    """Whether the cluster has acknowledged at least one writer's sent data completely.

    An allocation's writers are the log and the processes that report. False if the payload contains
    no data.
    """
    for (allocation, writer), offset in payload.sent.items():
        if writer == "log":
            acked = answer["logs_acked"].get(allocation, 0)
        else:
            acked = answer["acked"].get(allocation, {}).get(writer, 0)
        if acked >= offset:
            return True
    return False
