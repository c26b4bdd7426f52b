"""The result of a scheduler for one label, and the reasons why jobs wait."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from control_plane.scheduling.fitting import AgentSet
from control_plane.scheduling.model import AllocationRequest, AllocationStart, Job, Victim
from control_plane.scheduling.sizes import size_advice, slots_text


@dataclass(frozen=True, slots=True)
class HeldSlots:
    """The slots held for a job that has waited too long: `ready` of the `wanted` slots; `hidden` of
    these are free and withheld from other jobs.
    """

    group: int
    wanted: int
    ready: int
    hidden: int


@dataclass(frozen=True, slots=True)
class SchedulingResult:
    """The result of a scheduler for the agents of one label.

    `order`: jobs as they are served. `policy_reason` tells why a pending request waits apart from
    missing slots, when so many were given to its job. `held`: the slots that are held for one job.
    """

    starts: list[AllocationStart]
    victims: list[Victim]
    order: Sequence[Job]
    agents: AgentSet
    policy_reason: Callable[[Job, AllocationRequest, int], str]
    held: HeldSlots | None = None
    _verdicts: dict[tuple[int, bool], tuple[bool, str]] = field(default_factory=dict)

    def wait_reason(self, job: Job, request: AllocationRequest, started_slots: int) -> str:
        """Why a pending request waits, when so many slots were given to its job."""
        if not self.agents.agent_count:
            return f"no agent has the label {job.label}" if job.label else "there is no agent"
        slots, room = request.slots, remaining_slots(job)
        is_possible, missing = self._fit_verdict(slots, job.single_agent)
        if not is_possible:
            return missing
        if room is not None and 0 < slots > room - started_slots:
            return f"max_slots {job.max_slots} reached"
        if held := self._held_reason(job, slots, missing):
            return held
        reasons = missing, self.policy_reason(job, request, started_slots)
        return "; ".join(filter(None, reasons)) or "its turn comes next"

    def _held_reason(self, job: Job, slots: int, missing: str) -> str:
        """The reason of a request that waits because slots are held for a job; "" for others."""
        held = self.held
        if held is None or not slots:
            return ""
        if job.group == held.group:
            ready = f"slots are held for it: {held.ready} of {held.wanted}"
            return f"needs {slots_text(slots)}; {ready}"
        if not (missing and held.hidden):
            return ""
        are = "is" if held.hidden == 1 else "are"
        return f"{missing}; {slots_text(held.hidden)} {are} held for job {held.group}"

    def _fit_verdict(self, slots: int, single_agent: bool) -> tuple[bool, str]:
        """Whether agents could ever hold so many slots, and what is missing now; "" for nothing."""
        size = (slots, single_agent)
        if size not in self._verdicts:
            agent_set = self.agents
            is_possible = agent_set.can_ever_fit(*size)
            self._verdicts[size] = (
                is_possible,
                missing_capacity_reason(slots, single_agent, agent_set)
                if is_possible
                else size_advice(
                    slots, agent_set.agent_sizes, single_agent, agent_set.heterogeneous
                ),
            )
        return self._verdicts[size]


def remaining_slots(job: Job) -> int | None:
    """Slots that a job may take beside those it has; None: any number."""
    return None if job.max_slots is None else job.max_slots - job.held_slots


def missing_capacity_reason(slots: int, single_agent: bool, agent_set: AgentSet) -> str:
    """The capacity that the agents lack for a request, in words; "" if it fits."""
    if agent_set.can_fit_now(slots, single_agent):
        return ""
    if slots == 0:
        return "needs a zero-slot place, 0 free"
    if agent_set.free_slots < slots:
        return f"needs {slots_text(slots)}, {agent_set.free_slots} free"
    if single_agent or any(slots <= size for size in agent_set.agent_sizes):
        return f"needs {slots_text(slots)} on one agent, {agent_set.most_free_slots} free on one"
    return (
        f"needs {slots_text(slots)} on agents without other work, {agent_set.unused_slots} free "
        "there"
    )
