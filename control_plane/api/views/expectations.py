"""When what runs in a pool is expected to end, by how fast it trained so far, and who starts then.

A trial is expected to give its slots back when it reaches the length that it trains to now, at the
pace of its allocation since that was placed. One that has reported nothing yet tells nothing.
"""

from collections.abc import Mapping

from control_plane.actors import addresses
from control_plane.actors.pool import parse_allocation
from control_plane.actors.trial_state import TrialState
from control_plane.api.services import Services
from control_plane.api.views import metrics
from control_plane.api.views.books import Books
from control_plane.scheduling import forecast
from control_plane.searchers.method import ENDLESS

# Trials whose progress is looked at, each of them a row to read, and those that wait: a forecast of
# more takes longer than somebody who asks for a list waits.
RUNNING_MAX = 500
WAITING_MAX = 2_000
# Jobs, requests and agents that all plans of a forecast look at together.
LOOKS_MAX = 50_000


def expected_starts(services: Services, now: Books) -> dict[int, int]:
    """When the next trial of each waiting job is expected to start, of those it can be told for."""
    waiting = sum(sum(job.pending_slots.values()) for job in now.jobs)
    held = [holding.allocation for job in now.jobs for holding in job.holdings]
    now_ms = services.now_ms()
    if not 0 < waiting <= WAITING_MAX or len(held) > RUNNING_MAX:
        return {}
    ends_ms = expected_ends(services, held, now_ms)
    if not ends_ms:
        return {}
    looks = len(now.jobs) + waiting + len(held) + len(now.agents)
    found = forecast.expected_starts(
        now.jobs,
        now.agents,
        now.settings.scheduler,
        now_ms=now_ms,
        ends_ms=ends_ms,
        run_ms={},
        plans_max=min(forecast.PLANS_MAX, LOOKS_MAX // looks),
    )
    return {group: start_ms for group, start_ms in found.items() if start_ms is not None}


def expected_ends(services: Services, held: list[str], now_ms: int) -> Mapping[str, int]:
    """When allocations are expected to end, of those it can be told for."""
    names = [parse_allocation(name) for name in held]
    states = services.engine.states([addresses.trial(trial_id) for trial_id, _ in names])
    ends = {}
    for name, (_, epoch), state in zip(held, names, states, strict=True):
        if isinstance(state, TrialState) and state.epoch == epoch:
            end_ms = _end_ms(services, state, now_ms)
            if end_ms is not None:
                ends[name] = end_ms
    return ends


def _end_ms(services: Services, state: TrialState, now_ms: int) -> int | None:
    allocation, length = state.allocation, state.length
    if allocation is None or not allocation.placed_ms or length in (None, ENDLESS):
        return None
    steps = max(state.steps, metrics.steps_trained(services, state.trial_id, state.epoch))
    return end_ms(allocation.from_steps, steps, length, allocation.placed_ms, now_ms)


def end_ms(from_steps: int, steps: int, length: int, placed_ms: int, now_ms: int) -> int | None:
    """When `length` is reached by who came from `from_steps` to `steps` since `placed_ms`."""
    done, passed_ms = steps - from_steps, now_ms - placed_ms
    if done <= 0 or passed_ms <= 0:
        return None
    left_ms = max(0, length - steps) * passed_ms / done
    return now_ms + round(left_ms)
