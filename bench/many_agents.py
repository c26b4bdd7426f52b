"""Call times of a thousand agents that call an embedded cluster every 15 s.

The server is the real process. The agents are scripts in a single process and open a connection for
each call, like an agent with an expired connection.
"""

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

from bench.figures import Row, Scale, at_most, progress, row_without_value
from bench.serving import USER, serve_home
from control_plane.access.tokens import issue_agent_token
from control_plane.agents.service import AgentService
from local_cluster.embedded_cluster import POOL, build_embedded_cluster
from local_cluster.home import HomeFolder

P95_MS_MAX = 100
PERIOD_SECONDS = 15.0


@dataclass(frozen=True)
class _EnrolledAgent:
    """An enrolled agent."""

    name: str
    token: str
    epoch: int


def many_agents(scale: Scale) -> Iterator[Row]:
    """Yield the call times of idle agents, spread evenly over the period."""
    with TemporaryDirectory(prefix="detcloud-bench-", ignore_cleanup_errors=True) as folder:
        home = HomeFolder(Path(folder) / "home")
        with progress(f"{scale.agents} agents enrol"):
            agents = list(_enrol_agents(home, scale.agents))
        with serve_home(home) as url, progress(f"{scale.agent_rounds} calls of each"):
            taken, failed = asyncio.run(_call_durations_ms(url, agents, scale.agent_rounds))
    what = f"sync of {scale.agents:,} agents, each in {PERIOD_SECONDS:.0f} s, p95"
    if failed or not taken:
        yield row_without_value(what, f"{failed} of {failed + len(taken)} calls failed")
        return
    ordered = sorted(taken)
    beside = f"median {median(ordered):.0f} ms, p99 {_share(ordered, 0.99):.0f} ms"
    beside += f", largest {ordered[-1]:.0f} ms, {len(ordered):,} calls"
    yield at_most(what, _share(ordered, 0.95), P95_MS_MAX, "ms", beside=beside)


def _enrol_agents(home: HomeFolder, count: int) -> Iterator[_EnrolledAgent]:
    cluster = build_embedded_cluster(home, USER)
    service: AgentService = cluster.app.state.services.agents
    for number in range(count):
        name = f"agent-{number:04d}"
        epoch = service.enrol(name, POOL, ((0, "cuda", f"GPU-{number}", "GPU"),), "1")
        yield _EnrolledAgent(name, issue_agent_token(cluster.table, name, epoch), epoch)
    cluster.table.close()


async def _call_durations_ms(
    url: str, agents: list[_EnrolledAgent], rounds: int
) -> tuple[list[float], int]:
    """Return the milliseconds of each call and the number of failures.

    Each agent's first call is not counted, because the server was idle before.
    """
    taken: list[float] = []
    failures = 0
    random = Random(1)

    async def live(agent: _EnrolledAgent) -> None:
        nonlocal failures
        await asyncio.sleep(random.uniform(0, PERIOD_SECONDS))
        for turn in range(rounds + 1):
            began = time.perf_counter()
            try:
                await _sync(url, agent, turn + 1)
            except (OSError, ValueError):
                failures += 1
            else:
                if turn:
                    taken.append(1000 * (time.perf_counter() - began))
            await asyncio.sleep(max(0.0, PERIOD_SECONDS - (time.perf_counter() - began)))

    await asyncio.gather(*map(live, agents))
    return taken, failures


async def _sync(url: str, agent: _EnrolledAgent, call: int) -> None:
    """Make a call on a new connection. Raise OSError or ValueError if the call is not answered with
    200.
    """
    place = urlsplit(url)
    body = json.dumps({"epoch": agent.epoch, "call": call, "wait_ms": 0}).encode()
    head = (
        f"POST /api/v1/agents/{agent.name}/sync HTTP/1.1\r\nHost: {place.netloc}\r\n"
        f"Authorization: Bearer {agent.token}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    try:
        writer.write(head.encode() + body)
        answer = await reader.read()
    finally:
        writer.close()
    if not answer.startswith(b"HTTP/1.1 200 "):
        raise ValueError(answer[:100])


def _share(ordered: list[float], share: float) -> float:
    return ordered[ceil(share * len(ordered)) - 1]
