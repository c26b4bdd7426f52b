"""Estimates of when the allocations of a pool end, and of when waiting jobs start then.

A trial is expected to give its slots back when it reaches the length that it trains to now, at the
speed of its allocation since that was placed. There is no estimate before its first report, nor,
where it alone knows how many steps an epoch has, before it has reported a share of its length.
"""

from collections.abc import Mapping
from functools import partial

from control_plane.actors import addresses
from control_plane.actors.pool.actor import parse_allocation
from control_plane.actors.trial.state import TrialState
from control_plane.queries import metrics
from control_plane.queries.pool_snapshot import PoolSnapshot
from control_plane.scheduling import forecast
from control_plane.scheduling.schedule import schedule_jobs
from control_plane.services import Services

# Trials whose progress is read, each of them a row, and trials that wait: a forecast of more takes
# longer than a user waits for a list.
RUNNING_MAX = 500
WAITING_MAX = 2_000
# Jobs, requests and agents that all plans of a forecast look at together.
LOOKS_MAX = 50_000


def expected_starts(services: Services, snapshot: PoolSnapshot) -> dict[int, int]:
    """The time when the next trial of each waiting job is expected to start, where one is known."""
    waiting = sum(sum(job.pending_slots.values()) for job in snapshot.jobs)
    held = [holding.allocation_id for job in snapshot.jobs for holding in job.allocations]
    now_ms = services.now_ms()
    if not 0 < waiting <= WAITING_MAX or len(held) > RUNNING_MAX:
        return {}
    ends_ms = expected_ends(services, held, now_ms)
    if not ends_ms:
        return {}
    looks = len(snapshot.jobs) + waiting + len(held) + len(snapshot.agents)
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


def expected_ends(services: Services, held: list[str], now_ms: int) -> Mapping[str, int]:
    """The times when allocations are expected to end, where they are known."""
    names = [parse_allocation(name) for name in held]
    states = services.engine.read_states([addresses.trial(trial_id) for trial_id, _ in names])
    ends = {}
    for name, (_, epoch), state in zip(held, names, states, strict=True):
        if isinstance(state, TrialState) and state.epoch == epoch:
            end_ms = _end_ms(services, state, now_ms)
            if end_ms is not None:
                ends[name] = end_ms
    return ends


def _end_ms(services: Services, state: TrialState, now_ms: int) -> int | None:
    allocation = state.allocation
    if allocation is None or not allocation.placed_ms:
        return None
    steps = max(state.steps, metrics.steps_trained(services, state.trial_id, state.epoch))
    length = _steps_to_train(state, steps)
    if length is None:
        return None
    return estimate_end_ms(allocation.from_steps, steps, length, allocation.placed_ms, now_ms)


def _steps_to_train(state: TrialState, steps: int) -> int | None:
    """The length that the trial trains to, in steps. If it alone knows how many an epoch has, those
    to come are taken to have as many as those in its `steps` so far; None before it has any.
    """
    epochs, done = state.target_epochs, state.epochs_done
    if epochs is None:
        return state.target_steps
    return round(steps * epochs / done) if done else None


def estimate_end_ms(
    from_steps: int, steps: int, length: int, placed_ms: int, now_ms: int
) -> int | None:
    """Estimate when `length` is reached, by the steps since `placed_ms`; None without any."""
    steps_made, passed_ms = steps - from_steps, now_ms - placed_ms
    if steps_made <= 0 or passed_ms <= 0:
        return None
    left_ms = max(0, length - steps) * passed_ms / steps_made
    return now_ms + round(left_ms)
