"""The check of a gang's machines: the field of the trial's specification, and the report."""

import math
from collections.abc import Mapping
from typing import Any

from control_plane.actors import addresses
from control_plane.actors.agent.actor import AgentState
from control_plane.actors.messages.pool import PoolSettings
from control_plane.actors.messages.trial_gang_checks import (
    DEVICE_CHARACTERS_MAX,
    FAULTS_MAX,
    TEXT_CHARACTERS_MAX,
    GangCheckReported,
    GangMeetingDelayed,
)
from control_plane.actors.pool.machine_checks import GANG_CHECKS, GangChecks, check_plan
from control_plane.actors.trial.gang_checks import MOVES_MAX
from control_plane.actors.trial.state import TrialState
from control_plane.engine.engine import Engine

_RANK_MAX = 1 << 20
_ROUNDS_MAX = 1000
_WAITED_MS_MAX = 1 << 53
_BANDWIDTH_MAX = 1e9
"""The largest bandwidth that counts, in MB/s."""


def gang_check_fields(engine: Engine, trial: TrialState) -> dict[str, Any]:
    """Return the field `gang_check` of the specification of a gang, or {} without a check.

    Read the settings and the passed checks of the pool. All nodes get the same field, because only
    checks before the placement count. Trials on a single machine are not checked, nor are commands,
    notebooks, shells, and trials that were moved MOVES_MAX times in a row. Agents of different
    versions do not check, because an older agent would not take part.

    Raises:
        TableError: the state table failed.
    """
    allocation = trial.allocation
    if allocation is None or len(allocation.places) < 2 or trial.settings.runs_once:
        return {}
    if trial.check_moves >= MOVES_MAX:
        return {"gang_check": {"skip": f"it has failed {trial.check_moves} times in a row"}}
    agents = engine.read_states([addresses.agent(name) for name in allocation.agents])
    if len({state.version if isinstance(state, AgentState) else "" for state in agents}) > 1:
        return {}
    pool = addresses.pool(allocation.pool)
    settings, checks = engine.read_part(pool, "settings"), engine.read_part(pool, GANG_CHECKS)
    assert settings is None or isinstance(settings, PoolSettings)
    assert checks is None or isinstance(checks, GangChecks)
    known = settings or PoolSettings()
    plan = check_plan(known, checks, allocation.agents, allocation.placed_ms)
    if plan is None:
        return {}
    if plan.is_proven:
        return {"gang_check": {"skip": "the machines have passed within the hour"}}
    return {
        "gang_check": {
            "timeout_ms": plan.rules.timeout_ms,
            "min_bandwidth": plan.rules.min_bandwidth,
            "limits": dict(plan.limits),
            "has_passed_before": plan.has_passed_before,
        }
    }


def to_gang_check(epoch: int, line: Mapping[str, Any]) -> GangCheckReported:
    """Convert the line of a check. Texts and lists are cut.

    Raises KeyError, TypeError or ValueError for a malformed line.
    """
    bandwidth = line["bandwidth"]
    if isinstance(bandwidth, bool) or not isinstance(bandwidth, int | float):
        raise TypeError(bandwidth)
    if not math.isfinite(bandwidth) or not 0 <= bandwidth <= _BANDWIDTH_MAX:
        raise ValueError(bandwidth)
    nodes = tuple(_count(rank, _RANK_MAX) for rank in line.get("bad_nodes", ())[:FAULTS_MAX])
    links = tuple(
        (_count(first, _RANK_MAX), _count(second, _RANK_MAX))
        for first, second in line.get("bad_links", ())[:FAULTS_MAX]
    )
    if not bandwidth and not nodes and not links:
        raise ValueError("a check without a bandwidth names a fault")
    return GangCheckReported(
        epoch,
        float(bandwidth),
        str(line.get("device", ""))[:DEVICE_CHARACTERS_MAX],
        nodes,
        links,
        str(line.get("message", ""))[:TEXT_CHARACTERS_MAX],
        _count(line.get("rounds", 1), _ROUNDS_MAX),
    )


def to_gang_meeting(epoch: int, node_rank: int, line: Mapping[str, Any]) -> GangMeetingDelayed:
    """Convert the line of a node that has not met other nodes. Ranks beyond FAULTS_MAX are cut.

    Raises KeyError, TypeError or ValueError for a malformed line.
    """
    missing = tuple(_count(rank, _RANK_MAX) for rank in line["missing"][:FAULTS_MAX])
    waited_ms = _count(int(1000 * line["seconds"]), _WAITED_MS_MAX)
    has_met = _count(line["met"], _RANK_MAX) > 0
    return GangMeetingDelayed(epoch, node_rank, missing, has_met, waited_ms)


def _count(value: object, most: int) -> int:
    """Return a non-negative integer up to a limit. Raises ValueError for other values."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(value)
    return value
