"""Jobs after the starts of a plan, and after the stops of allocations."""

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from dataclasses import replace

from control_plane.scheduling.model import AllocationRequest, Job, RunningAllocation


def job_after_stops(
    job: Job, stopped: Sequence[RunningAllocation], begun: Sequence[AllocationRequest]
) -> Job:
    """Return the job after the starts of `begun` requests and the stops of `stopped` allocations.

    The stopped allocations are pending again, behind the job's other requests. The result's
    allocations are empty; its totals count the allocations that remain.

    Args:
        job: the job.
        stopped: the job's allocations that stop.
        begun: the job's requests that the plan starts.
    """
    started = {request.allocation_id: request.slots for request in begun}
    fixed = sum(request.slots for request in begun if not request.preemptible)
    fixed -= sum(running.slots for running in stopped if not running.preemptible)
    waiting = Counter(job.pending_slots)
    waiting.subtract(started.values())
    waiting.update(running.slots for running in stopped)
    stopped_slots = sum(running.slots for running in stopped)
    return replace(
        job,
        pending=_PendingAfterStops(job, started, stopped),
        allocations=(),
        pending_slots={slots: count for slots, count in waiting.items() if count > 0},
        held_slots=job.held_slots + sum(started.values()) - stopped_slots,
        non_preemptible_slots=job.non_preemptible_slots + fixed,
        leaving_slots=0,
    )


class _PendingAfterStops:
    """The pending requests of a job without started requests, then requests for stopped
    allocations.

    The requests are read lazily.

    Args:
        started: the allocation ids of the started requests.
        stopped: the stopped allocations.
    """

    def __init__(
        self, job: Job, started: Container[str], stopped: Sequence[RunningAllocation]
    ) -> None:
        self._job, self._started, self._stopped = job, started, stopped

    def __iter__(self) -> Iterator[AllocationRequest]:
        yield from (
            request for request in self._job.pending if request.allocation_id not in self._started
        )
        for running in self._stopped:
            yield AllocationRequest(
                running.allocation_id,
                running.slots,
                group=running.group,
                label=self._job.label,
                single_agent=self._job.single_agent,
                refused_kinds=self._job.refused_kinds,
            )
