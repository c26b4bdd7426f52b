"""SIGKILL at drawn moments: the targets of kills, and the revival afterwards."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from detcloud.shared.http import ApiError, Unreachable
from detcloud.shared.processes import Process, is_alive, read_process
from tests.end_to_end.laptop import DIGITS, Laptop
from tests.patience import wait_until

VICTIM_SECONDS_MAX = 20.0
BACK_SECONDS_MAX = 60.0
OUTAGE_SECONDS_MAX = 1.5
# A search that is almost done may end before the kill.
PROGRESS_MAX = 0.8
PAUSE_SECONDS_MAX = 0.5


class Target(StrEnum):
    """The target of a kill."""

    SERVER = "server"
    AGENT = "agent"
    # The leader of a trial's process group, the whole group, the supervisor above, and all of
    # these.
    TRIAL = "trial"
    GROUP = "group"
    SUPERVISOR = "supervisor"
    # As a power cut does: server, agent, supervisors and trials at the same moment.
    MACHINE = "machine"


class Revival(StrEnum):
    """The command that revives the server."""

    UP = "up"
    CREATE = "create"


OF_TRIALS = (Target.TRIAL, Target.GROUP, Target.SUPERVISOR)
OF_SERVERS = (Target.SERVER, Target.MACHINE)


@dataclass(frozen=True)
class Kill:
    """A kill `pause_seconds` after `progress` of the search (0 to 1) and the end of the last kill.

    `pick`, from 0 to 1, chooses a running trial.
    """

    target: Target
    progress: float
    pause_seconds: float
    pick: float
    outage_seconds: float
    revival: Revival


@dataclass(frozen=True)
class KillRecord:
    """An executed kill, and the time until server and agent worked again.

    The server's time is the command's duration. The agent's time runs to its enrolment: from the
    kill, or from the command's start if the server was killed too.
    """

    kill: Kill
    at_seconds: float
    victims: str
    server_seconds: float | None = None
    agent_seconds: float | None = None


def draw_kills(
    kills: int, seed: int, targets: Sequence[Target], progress_max: float = PROGRESS_MAX
) -> list[Kill]:
    """Return kills spread over a search until `progress_max`, with equal shares of targets."""
    draw = random.Random(seed)
    order = [targets[index % len(targets)] for index in range(kills)]
    draw.shuffle(order)
    moments = sorted(draw.uniform(0, progress_max) for _ in order)
    return [
        Kill(
            target,
            progress,
            pause_seconds=draw.uniform(0, PAUSE_SECONDS_MAX),
            pick=draw.random(),
            outage_seconds=draw.uniform(0, OUTAGE_SECONDS_MAX),
            revival=draw.choice(list(Revival)),
        )
        for target, progress in zip(order, moments, strict=True)
    ]


def strike(laptop: Laptop, kill: Kill, began: float) -> KillRecord | None:
    """Kill the target, and wait until server and agent work again; return the record.

    Return None if the target is a trial and no trial runs. Raises AssertionError if server or agent
    do not come back.
    """
    victims = _kill_target(laptop, kill)
    if not victims:
        return None
    at_seconds = time.monotonic() - began
    if kill.target in OF_TRIALS:
        return KillRecord(kill, at_seconds, victims)
    since, since_ms = time.monotonic(), time.time_ns() // 1_000_000
    server_seconds = None
    if kill.target in OF_SERVERS:
        time.sleep(kill.outage_seconds)
        since, since_ms = time.monotonic(), time.time_ns() // 1_000_000
        _revive(laptop, kill.revival)
        server_seconds = time.monotonic() - since
    wait_until(lambda: agent_works(laptop, since_ms), BACK_SECONDS_MAX)
    return KillRecord(kill, at_seconds, victims, server_seconds, time.monotonic() - since)


def agent_works(laptop: Laptop, since_ms: int) -> bool:
    """Return whether a child of the server enrolled as an agent after `since_ms`."""
    record = laptop.record()
    agent = read_process(record.get("agent_pid") or 0)
    if agent is None or agent.parent != record["pid"]:
        return False
    with contextlib.suppress(ApiError, Unreachable), laptop.cluster() as cluster:
        return any(one.enrolled_ms >= since_ms for one in cluster.agents())
    return False


def _kill_target(laptop: Laptop, kill: Kill) -> str:
    """Kill the target; return a description, or "" if no trial runs."""
    if kill.target is Target.SERVER:
        return _kill([_process(laptop, "pid")])
    if kill.target is Target.AGENT:
        return _kill([_process(laptop, "agent_pid")])
    if kill.target is Target.MACHINE:
        return _kill(laptop.processes())
    trials = laptop.running()
    if not trials:
        return ""
    victim = trials[int(kill.pick * len(trials))]
    if kill.target is Target.GROUP:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(victim.leader.pid, signal.SIGKILL)
    else:
        at_leader = kill.target is Target.TRIAL
        _kill([victim.leader if at_leader else victim.supervisor])
    return victim.allocation


def _process(laptop: Laptop, field: str) -> Process:
    """Wait for and return the process with the id in this field of server.json."""
    found = wait_until(lambda: read_process(laptop.record().get(field) or 0), VICTIM_SECONDS_MAX)
    assert found is not None
    return found


def _kill(processes: list[Process]) -> str:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not any(map(is_alive, processes)))
    return f"{len(processes)} processes" if len(processes) > 1 else f"pid {processes[0].pid}"


def _revive(laptop: Laptop, revival: Revival) -> None:
    if revival is Revival.UP:
        laptop.run("up", "--slots", 2)
    else:
        laptop.run("create", DIGITS / "const.yaml", DIGITS, "--paused")
