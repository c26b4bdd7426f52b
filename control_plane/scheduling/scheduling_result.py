"""The result of a scheduler for a label, and the reasons why jobs wait."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from control_plane.scheduling.fitting import AgentSet
from control_plane.scheduling.model import (
    AllocationRequest,
    AllocationStart,
    Job,
    RequestSize,
    Victim,
)
from control_plane.scheduling.sizes import size_advice
from detcloud.shared.plurals import count_text


@dataclass(frozen=True, slots=True)
class HeldSlots:
    """The slots held for a job that has waited too long."""

    group: int
    """The experiment id of the job."""
    wanted: int
    """The slots that the job needs."""
    ready: int
    """The wanted slots that are free or lent out for now."""
    hidden: int
    """The free slots that are withheld from other jobs."""


@dataclass(frozen=True, slots=True)
class SchedulingResult:
    """The result of a scheduler for the agents of a label."""

    starts: list[AllocationStart]
    """The requests to start, in order."""
    victims: list[Victim]
    """The allocations to preempt."""
    order: Sequence[Job]
    """The jobs in the order in which they are served. May include jobs without requests."""
    agents: AgentSet
    """The agents after the starts."""
    policy_reason: Callable[[Job, AllocationRequest, int], str]
    """Returns why a pending request waits apart from missing slots, or "". The arguments are the
    job, the request and the slots that the plan's starts gave the job.
    """
    held: HeldSlots | None = None
    """The slots that are held for one job, None without a reservation."""
    _verdicts: dict[RequestSize, tuple[bool, str]] = field(default_factory=dict)
    """Results of `_fit_verdict` by size."""

    def wait_reason(self, job: Job, request: AllocationRequest, started_slots: int) -> str:
        """Return a text for users about why a pending request waits. The text is never empty.

        The first of these reasons counts: no agent, no agent that meets the job's needs, excluded
        agents, a size that the agents can never run, `max_slots`, and slots that are held for a
        job. Otherwise the text has the missing slots and the scheduler's own reason, or "its turn
        comes next".

        Args:
            job: the job of the request.
            started_slots: the slots that the plan's starts gave the job.
        """
        if not self.agents.agent_count:
            return f"no agent has the label {job.label}" if job.label else "there is no agent"
        slots, room = request.slots, remaining_slots(job)
        if unmet := self._unmet_needs_reason(job, slots):
            return unmet
        if excluded := self._exclusion_reason(request):
            return excluded
        is_possible, missing = self._fit_verdict(job.size_of(slots))
        if missing and job.refused_kinds:
            missing = f"{missing} (of the agents with {job.needs})"
        if not is_possible:
            return missing
        if room is not None and 0 < slots > room - started_slots:
            return f"max_slots {job.max_slots} reached"
        if held := self._held_reason(job, slots, missing):
            return held
        reasons = missing, self.policy_reason(job, request, started_slots)
        return "; ".join(filter(None, reasons)) or "its turn comes next"

    def _unmet_needs_reason(self, job: Job, slots: int) -> str:
        """Return a reason if no agent that takes new work meets the job's needs.

        Return "" for other jobs.
        """
        sizes = self.agents.sizes
        if self.agents.agent_count == len(sizes.names_of_kinds(job.refused_kinds)):
            return f"no agent of the pool meets the needs: {job.needs}"
        if job.refused_kinds and slots and not sizes.count_others(job.refused_kinds):
            return f"the agents that meet the needs take no new work: {job.needs}"
        return ""

    def _exclusion_reason(self, request: AllocationRequest) -> str:
        """Return the reason of a request that only excluded agents could run, or could run now.

        Return "" for other requests.
        """
        size, sizes = request.size, self.agents.sizes
        if not request.excluded_agents or not sizes.can_ever_fit(*size):
            return ""
        names = ", ".join(sorted(self.agents.names & {*request.excluded_agents}))
        if not sizes.can_ever_fit(*size, request.excluded_agents):
            return f"a log policy excludes the agents that could run it: {names}"
        if self.agents.can_fit_now(*size) and not self.agents.find_placements(request):
            needs = f"needs {count_text(request.slots, 'slot')}"
            return f"{needs}, free only on agents that a log policy excludes: {names}"
        return ""

    def _held_reason(self, job: Job, slots: int, missing: str) -> str:
        """Return the reason of a request that waits because slots are held for a job. Otherwise
        return "".

        The holder waits for the slots. Another job waits if it lacks slots and free slots are
        withheld.

        Args:
            missing: the text about missing capacity, or "".
        """
        held = self.held
        if held is None or not slots:
            return ""
        if job.group == held.group:
            ready = f"slots are held for it: {held.ready} of {held.wanted}"
            return f"needs {count_text(slots, 'slot')}; {ready}"
        if not (missing and held.hidden):
            return ""
        are = "is" if held.hidden == 1 else "are"
        return f"{missing}; {count_text(held.hidden, 'slot')} {are} held for job {held.group}"

    def _fit_verdict(self, size: RequestSize) -> tuple[bool, str]:
        """Return whether the agents could ever fit a size, and a text about the missing capacity.

        The text is "" if the size fits now. For a size that never fits, the text advises other
        sizes. Results are cached.
        """
        if size not in self._verdicts:
            agent_set = self.agents
            is_possible = agent_set.sizes.can_ever_fit(*size)
            if is_possible:
                missing = missing_capacity_reason(size, agent_set)
            else:
                slots, single_agent, refused_kinds = size
                counts = agent_set.sizes.count_others(refused_kinds)
                missing = size_advice(slots, counts, single_agent, agent_set.heterogeneous)
            self._verdicts[size] = is_possible, missing and missing + _closed_text(agent_set)
        return self._verdicts[size]


def _closed_text(agent_set: AgentSet) -> str:
    """Return how many agents take no work for now, to append to a text. "" without such agents.

    The causes are people who use the machine, faults of the machine and exclusions.
    """
    count = agent_set.reopening_count
    take = "takes" if count == 1 else "take"
    return f"; {count_text(count, 'agent')} {take} no work for now" if count else ""


def remaining_slots(job: Job) -> int | None:
    """Return `max_slots` minus the job's held slots, which may be negative.

    Return None for a job without `max_slots`.
    """
    return None if job.max_slots is None else job.max_slots - job.held_slots


def missing_capacity_reason(size: RequestSize, agent_set: AgentSet) -> str:
    """Return a text about the capacity that the agents lack for a request.

    Return "" if the request fits the free slots.

    Args:
        size: the size of the request. 0 slots need an auxiliary place, room for an allocation
            without slots.
        agent_set: the agents after the starts of the plan.
    """
    slots, single_agent, refused_kinds = size
    if agent_set.can_fit_now(*size):
        return ""
    if slots == 0:
        return "needs a zero-slot place, 0 free"
    needs = f"needs {count_text(slots, 'slot')}"
    free = agent_set.count_free_slots(refused_kinds)
    if free < slots:
        return f"{needs}, {free} free"
    if single_agent or any(slots <= total for total in agent_set.sizes.count_others(refused_kinds)):
        most_free = agent_set.most_free_slots_without(refused_kinds)
        return f"{needs} on one agent, {most_free} free on one"
    unused = agent_set.count_unused_slots(refused_kinds)
    return f"{needs} on agents without other work, {unused} free there"
