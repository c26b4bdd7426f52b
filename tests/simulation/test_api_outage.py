"""An outage of the API alone: trials go on training, and nothing is ended for it."""

from pathlib import Path

import pytest

from control_plane.agents.leases import LEASE_MS
from tests.simulation.api_outage import MINUTE_MS, OutageCluster


@pytest.mark.parametrize(
    ("machines", "minutes", "offset_ms"),
    # An hour at once; and one that begins so before a tick that some leases have lapsed by then.
    [(50, 60, 0), (8, 12, 37_000), (8, 12, 45_000)],
)
def test_api_outage_ends_no_machine_and_restarts_no_trial(
    tmp_path: Path, machines: int, minutes: int, offset_ms: int
) -> None:
    cluster = OutageCluster(machines, minutes * MINUTE_MS, tmp_path, offset_ms)
    cluster.run_outage()
    assert cluster.busy == machines
    assert (cluster.restart_count, cluster.ended) == (0, [])
    # No other machine was needed.
    assert len(cluster.cloud.machines) == machines


def test_machine_ended_during_an_api_outage_is_lost_during_the_outage(tmp_path: Path) -> None:
    """The cloud says that it is gone: that needs no API."""
    cluster = OutageCluster(4, 30 * MINUTE_MS, tmp_path)
    lost: list[str] = []

    def lose_one() -> None:
        agent = cluster.machines.present_agents()[0]
        lost.append(agent.name)
        cluster.machines.lose_machine(agent)

    seen: list[bool] = []

    def look() -> None:
        seen.append(cluster.checker.actor_state(f"agent#{lost[0]}").lost)

    cluster.clock.call_at(cluster.began_ms + MINUTE_MS, lose_one)
    cluster.clock.call_at(cluster.began_ms + 10 * MINUTE_MS, look)
    cluster.run_outage()
    assert seen == [True]
    assert cluster.restart_count == 1


def test_agent_silent_after_an_api_outage_is_lost_after_a_lease(tmp_path: Path) -> None:
    cluster = OutageCluster(4, 20 * MINUTE_MS, tmp_path)
    back_ms = cluster.began_ms + cluster.outage_ms
    cut_off: list[str] = []

    def cut_one_off() -> None:
        agent = cluster.machines.present_agents()[0]
        agent.is_cut_off = True
        cut_off.append(agent.name)

    def is_lost() -> bool:
        return bool(cluster.checker.actor_state(f"agent#{cut_off[0]}").lost)

    seen: list[bool] = []
    cluster.clock.call_at(cluster.began_ms + MINUTE_MS, cut_one_off)
    # The API is back: a tick within a minute sees it, and the one after that marks the agent.
    for after_ms in (-1, LEASE_MS - 1, 3 * MINUTE_MS):
        cluster.clock.call_at(back_ms + after_ms, lambda: seen.append(is_lost()))

    cluster.run_outage()
    assert seen == [False, False, True]
    assert cluster.restart_count == 1
