"""The evidence of trials for bad machines: exclusions, and the checks of gangs.

Trials send the evidence, and the pool's settings decide. The part `gang_checks` keeps the latest
passed checks, by which later gangs are compared or not checked again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

from control_plane.actors import addresses
from control_plane.actors.messages.agent import AgentExcluded
from control_plane.actors.messages.pool import (
    ExclusionRequested,
    GangChecked,
    GangCheckRules,
    PoolSettings,
)
from control_plane.actors.pool.state import PoolState, agents_of, settings_of
from control_plane.actors.step import StepContext

GANG_CHECKS = "gang_checks"
"""The name of the part with the passed checks."""
PASSED_KEPT = 32
"""The most passed checks that a pool keeps."""
AGENTS_KEPT = 64
"""The most agents of a check that a pool keeps. Larger gangs are always checked."""
RECENT_MS = 3_600_000
"""The age up to which a passed check replaces another check, in ms."""
SLOW_SHARE = 0.25
"""A check below this share of the usual bandwidth counts as too slow."""


@dataclass(frozen=True, slots=True)
class PassedCheck:
    """A check that the machines of a gang passed."""

    agents: tuple[str, ...]
    """The ids of the agents, sorted. Empty for a gang above AGENTS_KEPT agents."""
    device: str
    """The kind of devices."""
    bandwidth: float
    """The bandwidth in MB/s."""
    at_ms: int
    """The time of the check, in epoch ms."""


@dataclass(frozen=True, slots=True)
class GangChecks:
    """The latest passed checks of a pool, the oldest first."""

    passed: tuple[PassedCheck, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """The check of a gang before the trial starts: settings, limits and earlier results."""

    rules: GangCheckRules
    """The settings of the pool."""
    limits: tuple[tuple[str, float], ...]
    """For each kind of devices a share of the usual bandwidth, in MB/s. A slower check has failed
    unless the settings have another limit.
    """
    is_proven: bool
    """Whether all pairs of the machines passed a check within RECENT_MS."""
    has_passed_before: bool
    """Whether the pool has passed checks, so that the machines' network allows the check."""


def check_plan(
    settings: PoolSettings, checks: GangChecks | None, agents: Sequence[str], placed_ms: int
) -> CheckPlan | None:
    """Return the plan of the check of a gang. None if the pool checks no gangs.

    Checks after `placed_ms`, the time of the placement, do not count.
    """
    rules = settings.gang_check
    if not rules.enabled or len(agents) < 2:
        return None
    passed = [x for x in (checks.passed if checks else ()) if x.at_ms <= placed_ms]
    proven = are_proven(passed, agents, placed_ms)
    return CheckPlan(rules, _usual_limits(passed), proven, bool(passed))


def are_proven(passed: Sequence[PassedCheck], agents: Sequence[str], now_ms: int) -> bool:
    """Return whether every pair of the agents passed a check together within RECENT_MS."""
    recent = [frozenset(x.agents) for x in passed if x.at_ms > now_ms - RECENT_MS]
    wanted = frozenset(agents)
    if any(wanted <= known for known in recent):
        return True
    if len(wanted) > AGENTS_KEPT:
        return False
    return bool(recent) and all(
        any(known.issuperset(pair) for known in recent) for pair in combinations(wanted, 2)
    )


def apply_evidence(
    state: PoolState, message: ExclusionRequested | GangChecked, context: StepContext
) -> PoolState:
    """Record a passed check, or exclude a machine if the settings say so. Return `state`."""
    if isinstance(message, GangChecked):
        _record_check(message, context)
    else:
        _exclude(state, message, context)
    return state


def _usual_limits(passed: Sequence[PassedCheck]) -> tuple[tuple[str, float], ...]:
    """Return SLOW_SHARE of the median bandwidth of each kind of devices."""
    figures: dict[str, list[float]] = {}
    for check in passed:
        figures.setdefault(check.device, []).append(check.bandwidth)
    return tuple((device, SLOW_SHARE * median(all_)) for device, all_ in sorted(figures.items()))


def _record_check(message: GangChecked, context: StepContext) -> None:
    """Append a passed check to the part, and drop the oldest checks above PASSED_KEPT."""
    before = context.part(GANG_CHECKS, GangChecks) or GangChecks()
    agents = tuple(sorted(message.agents)) if len(message.agents) <= AGENTS_KEPT else ()
    check = PassedCheck(agents, message.device, message.bandwidth, context.now_ms)
    context.write_part(GANG_CHECKS, GangChecks((*before.passed, check)[-PASSED_KEPT:]))


def _exclude(state: PoolState, message: ExclusionRequested, context: StepContext) -> None:
    """Send the agent an AgentExcluded if the settings exclude machines for this evidence.

    In a pool without a provider, at least half of the agents stay open.
    """
    settings = settings_of(context)
    duration_ms = _exclusion_ms(settings, message)
    if not duration_ms:
        return
    agents = agents_of(context)
    agent = agents.get(message.agent)
    if agent is None or not agent.availability.enabled:
        return
    if not settings.provider:
        enabled = sum(known.availability.enabled for _, known in agents.items())
        if 2 * (enabled - 1) < state.agents:
            context.add_reason(
                f"agent {message.agent} is not excluded: too few agents would be left"
            )
            return
    excluded = AgentExcluded(message.reason, context.now_ms + duration_ms)
    context.send(addresses.agent(message.agent), excluded)


def _exclusion_ms(settings: PoolSettings, message: ExclusionRequested) -> int:
    """Return the length of the exclusion for this evidence in ms. 0: no exclusion."""
    if message.by_check:
        rules = settings.gang_check
        return rules.exclusion_ms if rules.enabled else 0
    by_log = settings.log_exclusion
    if by_log is None or (by_log.policies and message.policy not in by_log.policies):
        return 0
    return by_log.duration_ms
