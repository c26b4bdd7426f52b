"""Deadlines on spot machines: what policies cost on generated traces, next to the optimum."""

from collections.abc import Iterator
from statistics import mean
from typing import NamedTuple

from bench.figures import Row, Scale, at_least, at_most, fewer, progress
from control_plane.spot.deadline_policies import HOUR_MS, POLICIES
from control_plane.spot.optimum import optimum_cost
from control_plane.spot.replay import replay_policy, trace_job
from control_plane.spot.traces import MINUTE_MS, availability, generate_trace

WORK_MS = 12 * HOUR_MS
SLACKS = (1.1, 1.25, 1.5, 2.0, 3.0)
CHANGEOVERS_MINUTES = (1, 5, 10)
AVAILABILITIES = (0.2, 0.35, 0.5, 0.65, 0.8, 0.95)
OURS, GREEDY, PUBLISHED = "reserved slack", "greedy", "uniform progress"
ABOVE_OPTIMUM_MAX_PERCENT = 15
# The conditions of the target that refers to the optimum.
SLACK_MIN, AVAILABILITY_MIN = 1.5, 0.5


class Replays(NamedTuple):
    """The results of a trace with a slack and a changeover: each policy's cost, and whether the
    deadline was met.
    """

    availability: float
    costs: dict[str, float]
    met: dict[str, bool]
    optimum: float


def deadlines(scale: Scale) -> Iterator[Row]:
    """Deadlines met, and costs against greedy's and the optimum, by slack and changeover."""
    cells = {
        (slack, minutes): _cell(scale, slack, minutes)
        for slack in SLACKS
        for minutes in CHANGEOVERS_MINUTES
    }
    runs = [run for cell in cells.values() for run in cell]
    what = f"deadlines met, {scale.spot_traces} traces, {len(cells)} slacks and changeovers"
    met = 100 * mean(run.met[OURS] for run in runs)
    yield at_least(what, met, 100, "%", beside=f"{len(runs):,} runs of {OURS}")
    for (slack, minutes), cell in cells.items():
        yield _against_greedy(f"slack {slack}, changeover {minutes} min", cell)
    for (slack, minutes), cell in cells.items():
        if slack >= SLACK_MIN:
            high = [run for run in cell if run.availability >= AVAILABILITY_MIN]
            yield _against_optimum(f"slack {slack}, changeover {minutes} min", high)


def replays(trace_number: int, slack: float, minutes: int) -> Replays:
    """Replay all policies on a trace. Slacks and changeovers share the trace: longer ones use more
    of the trace.
    """
    level = AVAILABILITIES[trace_number % len(AVAILABILITIES)]
    trace = generate_trace(level, round(max(SLACKS) * WORK_MS), trace_number)
    deadline_ms = round(slack * WORK_MS)
    job = trace_job(trace, WORK_MS, deadline_ms, minutes * MINUTE_MS)
    assert job.is_feasible
    found = {name: replay_policy(policy, job, trace) for name, policy in POLICIES.items()}
    optimum = optimum_cost(job, trace)
    assert optimum is not None
    return Replays(
        availability=availability(trace, deadline_ms),
        costs={name: replay_result.cost for name, replay_result in found.items()},
        met={name: replay_result.finished_ms is not None for name, replay_result in found.items()},
        optimum=optimum,
    )


def _cell(scale: Scale, slack: float, minutes: int) -> list[Replays]:
    with progress(f"{scale.spot_traces} traces, slack {slack}, changeover {minutes} min"):
        return [replays(number, slack, minutes) for number in range(scale.spot_traces)]


def _against_greedy(where: str, cell: list[Replays]) -> Row:
    ours, greedy, published = (_share(cell, name) for name in (OURS, GREEDY, PUBLISHED))
    optimum = 100 * mean(run.optimum for run in cell) / _on_demand(cell)
    beside = f"greedy {greedy:.1f}, uniform progress {published:.1f}, optimum {optimum:.1f} %"
    return fewer(f"cost of on-demand alone, {where}", ours, greedy, "%", beside=beside)


def _against_optimum(where: str, cell: list[Replays]) -> Row:
    above = {name: _percent_above_optimum(cell, name) for name in (OURS, GREEDY, PUBLISHED)}
    beside = (
        f"greedy {above[GREEDY]:.1f}, uniform progress {above[PUBLISHED]:.1f} %: {len(cell)} traces"
    )
    what = f"above the optimum, available half of the time or more, {where}"
    return at_most(what, above[OURS], ABOVE_OPTIMUM_MAX_PERCENT, "%", beside=beside)


def _share(cell: list[Replays], name: str) -> float:
    return 100 * mean(run.costs[name] for run in cell) / _on_demand(cell)


def _on_demand(cell: list[Replays]) -> float:
    return mean(run.costs["on-demand"] for run in cell)


def _percent_above_optimum(cell: list[Replays], name: str) -> float:
    return 100 * (mean(run.costs[name] for run in cell) / mean(run.optimum for run in cell) - 1)
