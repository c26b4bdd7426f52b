"""Two server processes with a common state, of which one is killed while trials run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from detcloud.client import Client
from tests.emulators.postgresql import Postgresql
from tests.emulators.server import free_port
from tests.integration.server_group import Prober, ServerGroup
from tests.patience import poll_until, wait_until

pytestmark = pytest.mark.end_to_end

KILL_SECONDS = 10.0
KILLS_SECONDS = 600.0
P99_SECONDS_MAX = 2.0


@pytest.fixture
def group(tmp_path: Path, postgres: Postgresql) -> Iterator[ServerGroup]:
    with ServerGroup(tmp_path, postgres.new_schema(), (free_port(), free_port())) as group:
        group.start(0)
        group.start(1)
        group.start_agent()
        yield group


def wait_for_runs(group: ServerGroup, count: int) -> None:
    """Wait until `count` trials were started."""
    wait_until(lambda: group.ledger.exists() and len(group.ledger.read_text().split()) >= count)


def has_ended(client: Client) -> bool:
    return all(experiment.has_ended for experiment in client.experiments())


def test_killed_server_loses_and_repeats_nothing(group: ServerGroup) -> None:
    experiment = group.submit(group.client(), 6, 0.05)
    wait_for_runs(group, 2)
    group.servers[0].kill()
    survivor = group.client(1)
    wait_until(lambda: has_ended(survivor))
    assert group.faults(survivor.experiment(experiment.id), 6) == []
    # The survivor also deletes, cancels and lists without the other server.
    assert [agent.id for agent in survivor.agents()] == ["machine"]


@pytest.mark.nightly
def test_rolling_restart_loses_and_repeats_nothing(group: ServerGroup) -> None:
    client = group.client()
    experiment = group.submit(client, 30, 0.2)
    with Prober(group.url, group.token) as prober:
        for number, server in enumerate(group.servers):
            wait_for_runs(group, 5 + 10 * number)
            assert server.stop() == 0
            group.start(number)
        wait_until(lambda: has_ended(client))
    experiment.refresh()
    assert group.faults(experiment, 30) == []
    assert prober.errors == []


@pytest.mark.nightly
def test_server_with_other_files_is_refused(tmp_path: Path, postgres: Postgresql) -> None:
    ports = free_port(), free_port()
    with ServerGroup(tmp_path, postgres.new_schema(), ports) as group:
        group.start(0)
        refused = group.start(1, files="elsewhere", awaited=False)
        assert refused.process is not None
        assert refused.process.wait(60) == 1
        assert "not the folder of objects" in (refused.home / "stderr.log").read_text()


@pytest.mark.nightly
def test_kills_every_ten_seconds_lose_and_repeat_nothing(group: ServerGroup) -> None:
    client = group.client()
    rounds = 0
    until = time.monotonic() + KILLS_SECONDS
    with Prober(group.url, group.token) as prober:
        while time.monotonic() < until:
            before = len(group.ledger.read_text().split()) if group.ledger.exists() else 0
            experiment = group.submit(client, 40, 0.1)
            kills = 0
            while not _ends_within(client, KILL_SECONDS):
                victim = (rounds + kills) % 2
                group.servers[victim].kill()
                group.start(victim)
                kills += 1
            experiment.refresh()
            assert group.faults(experiment, 40) == []
            assert len(group.ledger.read_text().split()) == before + 40
            rounds += 1
    ordered = sorted(prober.seconds)
    assert ordered[int(0.99 * len(ordered)) - 1] < P99_SECONDS_MAX
    assert prober.errors == []


def _ends_within(client: Client, seconds: float) -> bool:
    """Wait for the end of all experiments for at most `seconds`."""
    try:
        poll_until(lambda: has_ended(client), seconds, "the end", 0.2)
    except AssertionError:
        return False
    return True
