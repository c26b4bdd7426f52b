"""SIGKILL at drawn moments: what is hit, and how what was hit comes back."""

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
# A search that is almost done may end before it can be hit.
PROGRESS_MAX = 0.8
PAUSE_SECONDS_MAX = 0.5


class Target(StrEnum):
    """Whom a kill hits."""

    SERVER = "server"
    AGENT = "agent"
    # The leader of a trial's process group; the group as a whole; what stands above it; all of it.
    TRIAL = "trial"
    GROUP = "group"
    SUPERVISOR = "supervisor"
    # As a power cut does: server, agent, supervisors and trials at one moment.
    MACHINE = "machine"


class Revival(StrEnum):
    """The command that brings the server back."""

    UP = "up"
    CREATE = "create"


OF_TRIALS = (Target.TRIAL, Target.GROUP, Target.SUPERVISOR)
OF_SERVERS = (Target.SERVER, Target.MACHINE)


@dataclass(frozen=True)
class Kill:
    """`pause_seconds` after `progress` of the search (0 to 1) was done and the last kill was over.

    `pick`, from 0 to 1, chooses among the trials that run.
    """

    target: Target
    progress: float
    pause_seconds: float
    pick: float
    outage_seconds: float
    revival: Revival


@dataclass(frozen=True)
class KillRecord:
    """A kill that happened, and how long server and agent took to come back from it.

    The server's time is that of the command. The agent's runs from the kill, where the server was
    killed too from that command's start, to its enrolment.
    """

    kill: Kill
    at_seconds: float
    victims: str
    server_seconds: float | None = None
    agent_seconds: float | None = None


def draw_kills(
    kills: int, seed: int, targets: Sequence[Target], progress_max: float = PROGRESS_MAX
) -> list[Kill]:
    """Kills at moments spread over a search until `progress_max`; each target has its share."""
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
    """Kills, and returns once server and agent work again. Raises AssertionError if they do not.

    Returns None where it is a trial's turn and none runs at this moment.
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
    """Whether the server has a child that enrolled as its agent after `since_ms`."""
    record = laptop.record()
    agent = read_process(record.get("agent_pid") or 0)
    if agent is None or agent.parent != record["pid"]:
        return False
    with contextlib.suppress(ApiError, Unreachable), laptop.cluster() as cluster:
        return any(one.enrolled_ms >= since_ms for one in cluster.agents())
    return False


def _kill_target(laptop: Laptop, kill: Kill) -> str:
    """Whom it hit; "" where no trial runs."""
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
    """The one whose id server.json names; it may be starting."""
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
