"""Estimates of the ends of a pool's allocations and the starts of waiting jobs.

A trial is expected to release its slots when it reaches its current target length. Its speed is the
mean speed since its allocation was placed. Before the trial's first report no estimate exists. If
only the trial knows the steps of an epoch, no estimate exists until it has reported a share of an
epoch or more.
"""

from collections.abc import Mapping
from functools import partial

from control_plane.actors.pool.actor import parse_allocation
from control_plane.actors.trial.state import TrialState
from control_plane.queries import metrics
from control_plane.queries.pool_snapshot import PoolSnapshot
from control_plane.scheduling import forecast
from control_plane.scheduling.schedule import schedule_jobs
from control_plane.services import Services

# The most running trials and the most waiting trials of a forecast. Reading the progress of a
# running trial costs a row. A larger forecast takes longer than a user waits for a list.
RUNNING_MAX = 500
WAITING_MAX = 2_000
# The most jobs, requests and agents that a forecast examines, summed over all plans.
LOOKS_MAX = 50_000


def expected_starts(services: Services, snapshot: PoolSnapshot) -> dict[int, int]:
    """Return the expected start of the next trial of each waiting job.

    Reads the states and last metrics of the running trials.

    Returns:
        Times in epoch ms by experiment id; jobs without an estimate are left out. Empty if no trial
        waits, if no running trial has an expected end, or if the pool has more than WAITING_MAX
        waiting or RUNNING_MAX running trials.

    Raises:
        OSError: the object store does not answer.
    """
    waiting = sum(sum(job.pending_slots.values()) for job in snapshot.jobs)
    running = [holding.allocation_id for job in snapshot.jobs for holding in job.allocations]
    now_ms = services.now_ms()
    if not 0 < waiting <= WAITING_MAX or len(running) > RUNNING_MAX:
        return {}
    ends_ms = expected_ends(services, running, now_ms)
    if not ends_ms:
        return {}
    looks = len(snapshot.jobs) + waiting + len(running) + len(snapshot.agents)
    starts_ms = forecast.expected_starts(
        snapshot.jobs,
        snapshot.agents,
        snapshot.settings.scheduler,
        now_ms=now_ms,
        ends_ms=ends_ms,
        run_ms={},
        plans_max=min(forecast.PLANS_MAX, LOOKS_MAX // looks),
        schedule=partial(
            schedule_jobs,
            can_grow=bool(snapshot.settings.provider),
            reservation=snapshot.reservation,
        ),
    )
    return {group: start_ms for group, start_ms in starts_ms.items() if start_ms is not None}


def expected_ends(services: Services, allocation_ids: list[str], now_ms: int) -> Mapping[str, int]:
    """Return the expected ends of allocations.

    Args:
        services: the services that read trials and metrics.
        allocation_ids: the ids of the allocations, `TRIAL.EPOCH`.
        now_ms: the current time in epoch ms.

    Returns:
        Times in epoch ms by allocation id; allocations that have ended or have no estimate are left
        out.

    Raises:
        OSError: the object store does not answer.
    """
    names = [parse_allocation(name) for name in allocation_ids]
    states = services.experiments.read_trials(trial_id for trial_id, _ in names)
    ends = {}
    for name, (_, epoch), state in zip(allocation_ids, names, states, strict=True):
        if state is not None and state.epoch == epoch:
            end_ms = _end_ms(services, state, now_ms)
            if end_ms is not None:
                ends[name] = end_ms
    return ends


def _end_ms(services: Services, state: TrialState, now_ms: int) -> int | None:
    """Return the expected end of the trial's allocation in epoch ms, at the mean speed so far.

    Return None without a placed allocation, without a length to train to, or before the first step.
    Reads the trial's last metrics. Raises OSError if the object store does not answer.
    """
    allocation = state.allocation
    if allocation is None or not allocation.placed_ms:
        return None
    steps = max(state.steps, metrics.steps_trained(services, state.trial_id, state.epoch))
    length = _steps_to_train(state, steps)
    if length is None:
        return None
    return estimate_end_ms(allocation.from_steps, steps, length, allocation.placed_ms, now_ms)


def _steps_to_train(state: TrialState, steps: int) -> int | None:
    """Return the length that the trial trains to, in steps.

    If only the trial knows the steps of an epoch, the mean steps of its epochs so far are used.
    Return None before the trial has reported a share of an epoch, and without an assigned length.
    `steps` is the number of steps trained so far.
    """
    epochs, done = state.target_epochs, state.epochs_done
    if epochs is None:
        return state.target_steps
    return round(steps * epochs / done) if done else None


def estimate_end_ms(
    from_steps: int, steps: int, length: int, placed_ms: int, now_ms: int
) -> int | None:
    """Return the time in epoch ms at which a trial is expected to reach `length` steps.

    The speed is the mean since the trial was placed. Return None if the trial has made no step or
    no time has passed since then. Return `now_ms` for a trial that has reached the length.

    Args:
        from_steps: the steps that the trial had trained when it was placed.
        steps: the steps trained by now.
        length: the steps to train to.
        placed_ms: the time at which the trial was placed, in epoch ms.
        now_ms: the current time in epoch ms.
    """
    steps_made, passed_ms = steps - from_steps, now_ms - placed_ms
    if steps_made <= 0 or passed_ms <= 0:
        return None
    left_ms = max(0, length - steps) * passed_ms / steps_made
    return now_ms + round(left_ms)
