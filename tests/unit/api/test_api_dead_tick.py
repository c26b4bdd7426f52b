"""The tick's age in answers to agents, and notices of machines that end themselves."""

import pytest

from control_plane.agents.tick_age import READ_MS
from control_plane.fleet.notices import InstanceNotice, read_notices
from control_plane.fleet.records import FleetRow
from control_plane.fleet.rows import FLEETS, encode_row
from control_plane.state.table import Expect, Key, Put
from tests.unit.api.agent_side import Agent
from tests.unit.api.cluster import Cluster

ENDS_MS = 1_800_000_120_000


def test_answer_has_the_age_of_the_last_pass_over_the_pool(cluster: Cluster) -> None:
    agent = Agent(cluster)
    assert "tick_age_ms" not in agent.sync().json
    body = encode_row(FleetRow("default", passed_ms=cluster.clock.ms - 5_000))
    cluster.services.table.commit((Put(Key(FLEETS, "default"), 1, body, Expect.ABSENT),))
    cluster.clock.ms += READ_MS
    revision = agent.seen
    assert agent.sync().json["tick_age_ms"] == 5_000 + READ_MS
    # The age does not count as a change, which would end held calls.
    assert agent.seen == revision


def test_machine_that_ends_itself_is_drained_and_shows_the_reason(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent(cluster)
    agent.sync(notice={"deadline_ms": ENDS_MS, "cause": "dead_tick"})
    reason = "the idle machine ends itself, because the tick has not run for an hour"
    assert f"machine node: {reason}" in caplog.text
    notice = InstanceNotice("node", ENDS_MS, reason=reason)
    assert list(read_notices(cluster.services.table)) == [notice]
    (listed,) = cluster.get("/agents").json["items"]
    assert listed["draining"]


def test_notice_with_the_cause_of_a_newer_agent_is_an_interruption(cluster: Cluster) -> None:
    Agent(cluster).sync(notice={"deadline_ms": ENDS_MS, "cause": "flood"})
    assert list(read_notices(cluster.services.table)) == [InstanceNotice("node", ENDS_MS)]
