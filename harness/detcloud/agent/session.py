"""The agent's conversation with the cluster: enrol, then one sync call after the other.

The session stores nothing that matters: offsets and desired state come with every answer, so that
lost, repeated and late answers need no care beyond taking the newest revision.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from detcloud.agent.parcel import Parcel, Turns
from detcloud.http import ApiError, Transport, Unreachable, backoff_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from detcloud.agent.node import Node
    from detcloud.agent.pace import Pace
    from detcloud.agent.slots import Slot

HOLD_MS = 20_000
CALL_SECONDS = 15.0
FENCED_SECONDS_MAX = 15.0
QUIET_SECONDS = 0.2
STALLED_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Identity:
    """What an agent enrols with."""

    name: str
    resource_pool: str
    slots: Sequence[Slot]
    version: str
    label: str
    address: str


@dataclass(frozen=True, slots=True)
class Enrolment:
    """What the cluster gave us: the id, the epoch that fences us, the lease's length."""

    agent_id: str
    epoch: int
    lease_ms: int


class Refused(Exception):
    """The cluster will not have this agent, and asking again would not change that."""


class Session:
    """Runs in a thread of its own until the pace is stopped; `refused` tells why it gave up."""

    def __init__(
        self,
        url: str,
        join_token: str,
        identity: Identity,
        node: Node,
        pace: Pace,
        say: Callable[[str], None],
        heard: Callable[[], None] = lambda: None,
    ) -> None:
        """`heard` is called whenever the cluster has answered a sync."""
        self._url = url
        self._join_token = join_token
        self._identity = identity
        self._node = node
        self._pace = pace
        self._say = say
        self._heard = heard
        self._client = Transport(url, None)
        self._enrolment: Enrolment | None = None
        self._ever_enrolled = False
        self._seen = 0
        self._calls = 0
        self._stalls = 0
        self._refusals = 0
        self._entries_max: int | None = None
        self._turns = Turns()
        self.refused: str | None = None
        # What the cluster is to know of the machine's end, and what it knows.
        self._notice: dict[str, int] | None = None
        self._told: list[dict[str, int]] = []

    @property
    def token(self) -> str | None:
        """The agent's token, for model code."""
        return self._client.token

    def tell(self, deadline_ms: int | None) -> None:
        """Tells the cluster, once, when this machine ends; None: that it may be soon."""
        notice = {} if deadline_ms is None else {"deadline_ms": deadline_ms}
        if notice != self._notice and notice not in self._told:
            self._notice = notice
            self._pace.news(urgent=True)

    def run(self) -> None:
        """Enrol and sync until stopped."""
        failures = 0
        while not self._pace.stopped:
            try:
                if self._enrolment is None:
                    self._enrolment = self._enrol()
                self._turn(self._enrolment)
                failures = 0
            except Refused as refusal:
                self.refused = str(refusal)
                break
            except Exception as error:
                failures += 1
                if failures == 1 or not isinstance(error, Unreachable):
                    self._say(f"the cluster did not take our call, trying again: {error}")
                self._pace.rest(backoff_seconds(failures))
        self._client.close()

    def _enrol(self) -> Enrolment:
        body = {**asdict(self._identity), "slots": [asdict(s) for s in self._identity.slots]}
        client = Transport(self._url, self._join_token)
        try:
            answer = client.request("POST", "/api/v1/agents", body, retry=False)
        except ApiError as error:
            if error.status in (401, 403, 404, 422) and not self._ever_enrolled:
                raise Refused(f"the cluster refused the agent: {error.message}") from error
            raise
        finally:
            client.close()
        enrolment = Enrolment(str(answer["agent_id"]), int(answer["epoch"]), answer["lease_ms"])
        self._client.close()
        self._client = Transport(self._url, str(answer["token"]))
        self._ever_enrolled, self._seen = True, 0
        self._node.forget_acknowledged()
        self._say(f"enrolled as {enrolment.agent_id}, epoch {enrolment.epoch}")
        return enrolment

    def _turn(self, enrolment: Enrolment) -> None:
        """Pack, call, apply, and wait as long as the cluster asks or until there is news."""
        self._pace.taken()
        parcel = self._packed()
        began = time.monotonic()
        # The first call brings the acknowledged offsets: nothing may be packed before.
        first = any(allocation.acked is None for allocation in self._node.allocations())
        hold_ms = min(HOLD_MS, enrolment.lease_ms // 3) if parcel.empty and not first else 0
        answer = self._call(enrolment, parcel, hold_ms)
        if answer is None:
            return
        changed = self._apply(answer)
        quick = bool(hold_ms) and not changed and time.monotonic() - began < QUIET_SECONDS
        self._wait(answer, parcel, quick=quick)

    def _packed(self) -> Parcel:
        ready = [a for a in self._node.allocations() if a.acked is not None]
        throttled = [a for a in ready if a.throttled]
        if throttled:
            self._pace.news(urgent=False)
        sources = [a for a in ready if a not in throttled]
        parcel = self._turns.pack(sources, self._entries_max)
        if not parcel.more:
            for allocation in sources:
                allocation.pressing = False
        return parcel

    def _call(self, enrolment: Enrolment, parcel: Parcel, hold_ms: int) -> dict[str, Any] | None:
        """The answer; None when the call was cut off or refused and another one should follow."""
        self._calls += 1
        notice = self._notice
        envelope: dict[str, Any] = {
            "epoch": enrolment.epoch,
            "call": self._calls,
            "seen": self._seen,
            "wait_ms": 0 if notice is not None else hold_ms,
            **({} if notice is None else {"notice": notice}),
        }
        body = parcel.body(envelope, self._node.known())
        path = f"/api/v1/agents/{enrolment.agent_id}/sync"
        timeout_seconds = CALL_SECONDS + hold_ms / 1000
        if hold_ms:
            self._pace.hold(self._client)
        try:
            answer = self._client.request(
                "POST", path, body, retry=False, timeout_seconds=timeout_seconds
            )
        except Unreachable:
            if hold_ms and self._pace.release():
                return None
            raise
        except ApiError as error:
            self._refusal(error, parcel)
            return None
        finally:
            self._pace.release()
        if not isinstance(answer, dict):
            raise Unreachable(f"{self._url} answered a sync with {type(answer).__name__}")
        self._entries_max, self._refusals = None, 0
        if notice is not None:
            self._told.append(notice)
            self._notice = None if self._notice is notice else self._notice
        self._heard()
        return answer

    def _refusal(self, error: ApiError, parcel: Parcel) -> None:
        if error.status == 409:
            self._say("another enrolment replaced ours: stopping all trials, enrolling again")
            self._stop_fenced()
        elif error.status in (401, 404):
            self._say("the cluster does not know this agent any more, enrolling again")
        elif error.status in (413, 422) and not parcel.empty:
            self._narrow(error, parcel)
            return
        else:
            raise error
        self._enrolment = None
        self._pace.rest(backoff_seconds(1))

    def _stop_fenced(self) -> None:
        """Our trials may run elsewhere by now: end them before anything else."""
        self._node.fence("another session of its agent began")
        give_up_at = time.monotonic() + FENCED_SECONDS_MAX
        while self._node.active() and time.monotonic() < give_up_at:
            self._pace.rest(0.05)

    def _narrow(self, error: ApiError, parcel: Parcel) -> None:
        """One line that the cluster cannot take must not stop the rest: find it by halving."""
        if parcel.entries > 1:
            self._entries_max = parcel.entries // 2
            return
        ((name, writer), offset) = next(iter(parcel.sent.items()))
        self._say(f"the cluster refused what {writer} of {name} wrote: {error.message}")
        for allocation in self._node.allocations():
            if allocation.allocation == name:
                allocation.refuse(writer, offset)
        self._refusals += 1
        self._pace.rest(backoff_seconds(self._refusals))

    def _apply(self, answer: dict[str, Any]) -> bool:
        """Take over offsets and the desired state; whether it is another than before."""
        self._node.acknowledge(answer["acked"], answer["logs_acked"])
        revision = int(answer["revision"])
        changed = revision != self._seen
        for entry in answer["desired"]:
            self._node.apply(entry)
        self._seen = revision
        return changed

    def _wait(self, answer: dict[str, Any], parcel: Parcel, *, quick: bool) -> None:
        for allocation in self._node.allocations():
            allocation.charge(parcel.lines.get(allocation.allocation, 0))
        if parcel.sent and not _progressed(answer, parcel):
            self._stalls += 1
            self._pace.rest(STALLED_SECONDS + backoff_seconds(self._stalls))
            return
        self._stalls = 0
        if parcel.more:
            return
        seconds = max(0.0, float(answer.get("next_sync_ms", 0)) / 1000)
        if "patient_ms" in answer:
            self._pace.patient_seconds = max(0.0, float(answer["patient_ms"]) / 1000)
        if parcel.empty and quick:
            # A cluster that neither holds calls nor names a pause must not be called in a loop.
            seconds = max(seconds, QUIET_SECONDS)
        self._pace.wait(seconds)


def _progressed(answer: dict[str, Any], parcel: Parcel) -> bool:
    """Whether the cluster took anything of what was sent."""
    for (allocation, writer), offset in parcel.sent.items():
        if writer == "log":
            acked = answer["logs_acked"].get(allocation, 0)
        else:
            acked = answer["acked"].get(allocation, {}).get(writer, 0)
        if acked >= offset:
            return True
    return False
