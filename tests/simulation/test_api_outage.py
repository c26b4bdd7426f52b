"""Tests of API outages: trials continue to train, and no machine ends because of the outage."""

from pathlib import Path

import pytest

from control_plane.agents.leases import LEASE_MS
from tests.simulation.api_outage import MINUTE_MS, OutageCluster


@pytest.mark.parametrize(
    ("machines", "minutes", "offset_ms"),
    # An hour, and outages that begin shortly before a tick, at which some leases have expired.
    [(50, 60, 0), (8, 12, 37_000), (8, 12, 45_000)],
)
def test_api_outage_ends_no_machine_and_restarts_no_trial(
    tmp_path: Path, machines: int, minutes: int, offset_ms: int
) -> None:
    cluster = OutageCluster(machines, minutes * MINUTE_MS, tmp_path, offset_ms)
    cluster.run_outage()
    assert cluster.busy == machines
    assert (cluster.restart_count, cluster.ended) == (0, [])
    # No replacement was launched.
    assert len(cluster.cloud.machines) == machines


def test_machine_ended_in_an_api_outage_is_lost_during_the_outage(tmp_path: Path) -> None:
    """The cloud reports the end of the machine, without the API."""
    cluster = OutageCluster(4, 30 * MINUTE_MS, tmp_path)
    lost: list[str] = []

    def lose_machine() -> None:
        agent = cluster.machines.present_agents()[0]
        lost.append(agent.name)
        cluster.machines.lose_machine(agent)

    lost_flags: list[bool] = []

    def read_lost_flag() -> None:
        lost_flags.append(cluster.checker.actor_state(f"agent#{lost[0]}").lost)

    cluster.clock.call_at(cluster.began_ms + MINUTE_MS, lose_machine)
    cluster.clock.call_at(cluster.began_ms + 10 * MINUTE_MS, read_lost_flag)
    cluster.run_outage()
    assert lost_flags == [True]
    assert cluster.restart_count == 1


def test_agent_silent_after_an_api_outage_is_lost_after_a_lease(tmp_path: Path) -> None:
    cluster = OutageCluster(4, 20 * MINUTE_MS, tmp_path)
    back_ms = cluster.began_ms + cluster.outage_ms
    cut_off: list[str] = []

    def cut_agent_off() -> None:
        agent = cluster.machines.present_agents()[0]
        agent.is_cut_off = True
        cut_off.append(agent.name)

    def is_lost() -> bool:
        return bool(cluster.checker.actor_state(f"agent#{cut_off[0]}").lost)

    seen: list[bool] = []
    cluster.clock.call_at(cluster.began_ms + MINUTE_MS, cut_agent_off)
    # A tick within a minute after the outage sees the API again; the next tick marks the agent.
    for after_ms in (-1, LEASE_MS - 1, 3 * MINUTE_MS):
        cluster.clock.call_at(back_ms + after_ms, lambda: seen.append(is_lost()))

    cluster.run_outage()
    assert seen == [False, False, True]
    assert cluster.restart_count == 1
