"""The check of a gang's machines in a simulated cluster.

The search for bad machines is the search of real gangs. The simulation replaces the all-reduce: a
group with a machine on a bad network fails. On some bad networks, a machine does not even meet the
other machines.
"""

import zlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from detcloud.shared.gang_faults import begin_search, record_round, rounds_max
from simulator.machines.report_stream import Line

CHECK_MS = 10_000
"""The duration of a check, in ms."""
MOVE_MS_MAX = 60_000
"""The time after which a trial starts although the check failed, in ms."""
MEETING_MS_MAX = 600_000
"""The time after which a trial starts although its nodes have not met, in ms."""
BANDWIDTH = 1000.0


def run_check(
    settings: Mapping[str, Any], agents: Sequence[str], bad: Collection[str]
) -> tuple[dict[int, Line], int]:
    """Return the reports of a check by rank, and the wait in ms before the training.

    Args:
        settings: the field `gang_check` of the specification.
        agents: the agents of the gang, by rank.
        bad: the agents on bad networks.
    """
    if lines := _meet(settings, agents, bad):
        return lines, MEETING_MS_MAX
    line = _check_machines(settings, agents, bad)
    if line is None:
        return {}, 0
    return {0: line}, 0 if line["bandwidth"] else MOVE_MS_MAX


def _meet(
    settings: Mapping[str, Any], agents: Sequence[str], bad: Collection[str]
) -> dict[int, Line]:
    """Return the reports by rank of nodes that cannot meet. {} if all nodes meet.

    Half of all machines, chosen by name, meet no other machine while the network is bad. If node 0
    meets no node, and the pool has never passed a check, node 0 reports nothing.
    """
    apart = {
        rank for rank, name in enumerate(agents) if name in bad and zlib.crc32(name.encode()) % 2
    }
    if not apart:
        return {}
    missing = [rank for rank in range(1, len(agents)) if apart & {0, rank}]
    seconds = settings["timeout_ms"] / 1000
    lines = {
        rank: {"kind": "gang_meeting", "missing": [0], "met": 0, "seconds": seconds}
        for rank in missing
    }
    met = len(agents) - 1 - len(missing)
    if met or settings["has_passed_before"]:
        lines[0] = {"kind": "gang_meeting", "missing": missing, "met": met, "seconds": seconds}
    return lines


def _check_machines(
    settings: Mapping[str, Any], agents: Sequence[str], bad: Collection[str]
) -> Line | None:
    """Return the report of a check. None if the check has no result.

    A machine on a bad network fails with all other machines. If no machines pass, only an earlier
    check of the pool shows that the network allows the check.
    """
    search = begin_search(len(agents))
    while not search.is_over:
        passed = [group for group in search.groups if not any(agents[n] in bad for n in group)]
        search = record_round(search, passed)
    is_single = sum(agent in bad for agent in agents) == 1
    assert not is_single or search.rounds <= rounds_max(len(agents)), search
    assert all(agents[rank] in bad for rank in search.bad_nodes), search
    faults = {"bad_nodes": list(search.bad_nodes), "bad_links": list(search.bad_links)}
    if not search.bad_nodes and not search.bad_links:
        if search.rounds > 1:
            return None
        return {"kind": "gang_check", "bandwidth": BANDWIDTH, "device": "cpu"}
    if not search.has_passed and not settings["has_passed_before"]:
        return None
    return {
        "kind": "gang_check",
        "bandwidth": 0.0,
        "message": "a machine is on a bad network",
        "rounds": search.rounds,
        **faults,
    }
