"""Evidence of trials for bad machines: exclusions by the pool's settings, and passed checks."""

from __future__ import annotations

import json

import pytest

from control_plane.actors.messages.agent import AgentExcluded
from control_plane.actors.messages.pool import (
    AgentJoined,
    ExclusionRequested,
    GangChecked,
    GangCheckRules,
    LogExclusionRules,
    PoolConfigured,
    PoolRemoved,
    PoolSettings,
)
from control_plane.actors.pool.machine_checks import (
    AGENTS_KEPT,
    GANG_CHECKS,
    PASSED_KEPT,
    RECENT_MS,
    GangChecks,
    PassedCheck,
    are_proven,
    check_plan,
)
from control_plane.actors.records import Availability
from tests.unit.actors.actor_harness import ActorHarness

HOUR_MS = 3_600_000
BY_LOG = ExclusionRequested("a", "trial 4: ECC", "ECC Error")
BY_CHECK = ExclusionRequested("a", "trial 4: slow", by_check=True)


def pool(settings: PoolSettings, *agents: str) -> ActorHarness:
    actor = ActorHarness("pool#default")
    joined = [AgentJoined(name, 1, (0,)) for name in agents or ("a", "b")]
    actor.deliver(PoolConfigured("default", settings), *joined)
    return actor


def passed_check(*agents: str, at_ms: int = 0, bandwidth: float = 100.0) -> PassedCheck:
    return PassedCheck(tuple(sorted(agents)), "cpu", bandwidth, at_ms)


@pytest.mark.parametrize(
    ("rules", "is_excluded"),
    [
        (None, False),
        (LogExclusionRules(HOUR_MS), True),
        (LogExclusionRules(HOUR_MS, ("ECC Error",)), True),
        (LogExclusionRules(HOUR_MS, ("OOM",)), False),
    ],
)
def test_settings_decide_about_exclusion_by_log(
    rules: LogExclusionRules | None, *, is_excluded: bool
) -> None:
    actor = pool(PoolSettings(log_exclusion=rules))
    actor.deliver(BY_LOG)
    expected = [AgentExcluded("trial 4: ECC", actor.now_ms + HOUR_MS)] if is_excluded else []
    assert actor.messages_to("agent#a") == expected


def test_failed_check_excludes_by_default_unless_checks_are_off() -> None:
    actor = pool(PoolSettings())
    actor.deliver(BY_CHECK)
    assert actor.messages_to("agent#a") == [AgentExcluded("trial 4: slow", actor.now_ms + HOUR_MS)]
    off = pool(PoolSettings(gang_check=GangCheckRules(enabled=False)))
    off.deliver(BY_CHECK)
    assert off.messages_to("agent#a") == []


def test_pool_of_fixed_machines_keeps_half_of_the_agents_open() -> None:
    # Of three agents, two may not be excluded: one is less than half.
    closed = AgentJoined("b", 1, (0,), Availability(enabled=False, draining=True))
    fixed = pool(PoolSettings(), "a", "c")
    fixed.deliver(closed)
    fixed.deliver(BY_CHECK)
    assert fixed.messages_to("agent#a") == []
    cloud = pool(PoolSettings(provider="{}"), "a")
    cloud.deliver(BY_CHECK)
    assert len(cloud.messages_to("agent#a")) == 1


def test_unknown_and_closed_agents_are_not_excluded() -> None:
    actor = pool(PoolSettings(), "b", "c")
    actor.deliver(BY_CHECK)
    actor.deliver(AgentJoined("a", 1, (0,), Availability(enabled=False)))
    actor.deliver(BY_CHECK)
    assert actor.messages_to("agent#a") == []


def test_latest_passed_checks_are_kept_until_the_pool_is_removed() -> None:
    actor = pool(PoolSettings(), "a", "b")
    for number in range(PASSED_KEPT + 1):
        actor.deliver(GangChecked(("b", "a"), "cpu", float(number + 1)))
    kept = json.loads(actor.parts[GANG_CHECKS])["passed"]
    assert len(kept) == PASSED_KEPT
    first = {"agents": ["a", "b"], "device": "cpu", "bandwidth": 2.0, "at_ms": actor.now_ms}
    assert kept[0] == first
    empty = ActorHarness("pool#default")
    empty.deliver(PoolConfigured("default"), GangChecked(("a", "b"), "cpu", 1.0), PoolRemoved())
    assert empty.parts.get(GANG_CHECKS) is None


def test_machines_are_proven_if_every_pair_has_passed_recently() -> None:
    now_ms = RECENT_MS
    pairs = [
        passed_check("a", "b", at_ms=1),
        passed_check("b", "c", at_ms=1),
        passed_check("a", "c", at_ms=1),
    ]
    assert are_proven(pairs, ["a", "b", "c"], now_ms)
    assert not are_proven(pairs[:2], ["a", "b", "c"], now_ms)
    assert are_proven([passed_check("a", "b", "c", at_ms=1)], ["c", "a"], now_ms)
    # A check at 0 is an hour old, which is too old.
    assert not are_proven([passed_check("a", "b")], ["a", "b"], now_ms)
    assert not are_proven([], ["a", "b"], now_ms)


def test_gangs_beyond_the_kept_size_are_not_proven_by_pairs() -> None:
    many = [f"n{number}" for number in range(AGENTS_KEPT + 1)]
    assert not are_proven([passed_check("a", "b", at_ms=1)], many, 2)


def test_plan_compares_with_a_quarter_of_the_median() -> None:
    checks = GangChecks(tuple(passed_check("x", "y", bandwidth=float(b)) for b in (100, 200, 900)))
    plan = check_plan(PoolSettings(), checks, ["a", "b"], 5)
    assert plan is not None
    # A quarter of the median 200.
    assert plan.limits == (("cpu", 50.0),)
    assert (plan.is_proven, plan.has_passed_before) == (False, True)
    assert check_plan(PoolSettings(), checks, ["a"], 5) is None
    off = PoolSettings(gang_check=GangCheckRules(enabled=False))
    assert check_plan(off, checks, ["a", "b"], 5) is None


def test_checks_after_the_placement_do_not_count() -> None:
    checks = GangChecks((passed_check("a", "b", at_ms=6),))
    plan = check_plan(PoolSettings(), checks, ["a", "b"], 5)
    assert plan is not None
    assert (plan.limits, plan.is_proven, plan.has_passed_before) == ((), False, False)
