"""A pool of agent processes as instances: from empty to its work and back, with losses."""

from __future__ import annotations

import getpass
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from control_plane.fleet.records import InstanceRow, InstanceState
from control_plane.fleet.rows import read_instances, read_past_instances
from control_plane.state.sqlite import SqliteTable
from detcloud.shared.processes import Process, is_alive, read_process
from local_cluster.embedded_cluster import POOL, build_embedded_cluster
from local_cluster.home import HomeFolder
from tests.end_to_end.laptop import Laptop
from tests.end_to_end.tiny_model import write_model
from tests.patience import wait_until

pytestmark = pytest.mark.end_to_end

PROVIDER = {"type": "local", "max_instances": 2, "max_idle_agent_period": "3s"}


def configure(home: Path, **fields: Any) -> None:
    """Give the pool `default` a provider, before the cluster is up."""
    pool = {"pool_name": POOL, "provider": PROVIDER | fields}
    config = json.dumps({"resource_pools": [pool]})
    build_embedded_cluster(HomeFolder(home), getpass.getuser(), config).table.close()


def rows(laptop: Laptop) -> list[InstanceRow]:
    """Return the instances of the pool."""
    table = SqliteTable(laptop.home / "state.db")
    try:
        return read_instances(table, POOL)
    finally:
        table.close()


def running(laptop: Laptop) -> list[str]:
    return [row.id for row in rows(laptop) if row.state is InstanceState.RUNNING]


def end_reasons(laptop: Laptop) -> list[str]:
    table = SqliteTable(laptop.home / "state.db")
    try:
        return sorted(row.reason for row in read_past_instances(table, POOL)[0])
    finally:
        table.close()


def agent(laptop: Laptop, name: str) -> Process:
    """Return the agent process of an instance."""
    record = json.loads((laptop.home / "instances" / name / "instance.json").read_text())
    process = read_process(record["pid"])
    assert process is not None
    return process


def agents(laptop: Laptop) -> list[Process]:
    return [process for process in laptop.processes() if "detcloud.agent" in process.command]


@pytest.mark.nightly
def test_pool_grows_to_two_instances_and_shrinks_to_zero(laptop: Laptop, tmp_path: Path) -> None:
    configure(laptop.home)
    laptop.run("up")
    assert agents(laptop) == []
    laptop.run("create", *write_model(tmp_path, 0.5))
    wait_until(lambda: len(running(laptop)) == 2)
    assert len(agents(laptop)) == 2
    assert laptop.run("wait", 1).stdout == "experiment 1 finished\n"
    wait_until(lambda: not rows(laptop), 60)
    assert agents(laptop) == []
    assert [reason[:11] for reason in end_reasons(laptop)] == ["it was idle"] * 2
    assert [one["restarts"] for one in laptop.json("trial", "list", 1)] == [0, 0]


@pytest.mark.nightly
def test_killed_instance_is_replaced_and_the_trial_resumes(laptop: Laptop, tmp_path: Path) -> None:
    configure(laptop.home, min_instances=1, max_instances=1)
    laptop.run("up")
    (first,) = wait_until(lambda: running(laptop))
    laptop.run("create", *write_model(tmp_path, 0.5))
    trial = wait_until(lambda: trials(laptop, first))
    os.kill(agent(laptop, first).pid, signal.SIGKILL)
    wait_until(lambda: running(laptop) not in ([], [first]))
    # No process of the killed instance runs beside its successor.
    assert not any(map(is_alive, trial))
    assert laptop.run("wait", 1).stdout == "experiment 1 finished\n"
    assert "the cloud terminated it" in end_reasons(laptop)
    assert [one["restarts"] for one in laptop.json("trial", "list", 1)] == [0, 0]


def test_notice_is_obeyed_and_the_replacement_starts_at_once(
    laptop: Laptop, tmp_path: Path
) -> None:
    configure(laptop.home, max_instances=1)
    laptop.run("up")
    laptop.run("create", *write_model(tmp_path, 1.0))
    (first,) = wait_until(lambda: running(laptop))
    wait_until(lambda: trials(laptop, first))
    notice = {"deadline_ms": 2_000_000_000_000, "reason": "the spot market wants it"}
    path = laptop.home / "instances" / first / "work" / "preemption-notice.json"
    path.write_text(json.dumps(notice))
    wait_until(lambda: set(running(laptop)) - {first})
    assert laptop.run("wait", 1).stdout == "experiment 1 finished\n"
    check_replacements(laptop, first)


def check_replacements(laptop: Laptop, first: str) -> None:
    """Check the replacement of a run that left the instance `first` after a notice."""
    ids = [trial["id"] for trial in laptop.json("trial", "list", 1)]
    described = [laptop.json("trial", "describe", trial_id) for trial_id in ids]
    shown = [each for trial in described for each in trial["replacements"]]
    (replacement,) = [each for each in shown if each["cause"] == "notice"]
    assert replacement["reason"] == "the spot market wants it"
    assert replacement["from_agent_id"] == first
    assert replacement["agent_ids"] != [first]
    assert replacement["has_first_step"]
    phases = {each["phase"]: each["duration_ms"] for each in replacement["phases"]}
    # The provider's instances are processes: their kernel runs already, and there is no image.
    expected = ["checkpoint", "queue", "launch", "boot", "code", "packages", "start", "restore"]
    assert [*phases] == [*expected, "first_step"]
    assert phases["launch"] == 0
    assert sum(phases.values()) == replacement["ended_ms"] - replacement["begun_ms"]
    assert (
        "after a notice: the spot market wants it"
        in laptop.run("trial", "describe", replacement["trial_id"]).stdout
    )
    sums = laptop.json("resource-pool", "describe", POOL)["replacements"]
    assert [(each["cause"], each["count"]) for each in sums["causes"]] == [("notice", 1)]
    assert "1 replacement after a notice" in laptop.run("resource-pool", "describe", POOL).stdout


def trials(laptop: Laptop, name: str) -> list[Process]:
    """Return the trial processes of an instance."""
    found = []
    for path in laptop.home.glob(f"instances/{name}/work/allocations/*/agent/process.json"):
        process = read_process(json.loads(path.read_text())["pid"])
        found += [process] if process else []
    return found


def test_instances_outlive_a_killed_server(laptop: Laptop, tmp_path: Path) -> None:
    configure(laptop.home, min_instances=1, max_instances=1)
    laptop.run("up")
    (first,) = wait_until(lambda: running(laptop))
    before = agent(laptop, first)
    laptop.run("create", *write_model(tmp_path, 0.3))
    wait_until(lambda: trials(laptop, first))
    os.kill(laptop.record()["pid"], signal.SIGKILL)
    laptop.run("up")
    assert laptop.run("wait", 1).stdout == "experiment 1 finished\n"
    assert running(laptop) == [first]
    after = agent(laptop, first)
    assert (after.pid, after.started_ticks) == (before.pid, before.started_ticks)
