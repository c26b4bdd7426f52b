"""A lab on one server: a thousand agents, ten thousand trials, and half an hour without a server.

The server of the first figures is the real process. The agents are scripts in a single process.
The last figure runs the server's code in this process with a scripted clock.
"""

import asyncio
import hashlib
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from random import Random
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from bench.fan_in import empty_archive
from bench.figures import Row, Scale, at_most, progress, row_without_value
from bench.instant_agent import end_of_trial
from bench.machine import cpu_seconds
from bench.scripted_calls import CallFailed, call_api
from bench.serving import USER, serve_home
from bench.trials import POOL, Load, new_service, submission_of
from control_plane.access.principals import Principal, Role
from control_plane.access.tokens import issue_agent_token
from control_plane.actors import addresses
from control_plane.actors.messages.pool import PoolConfigured
from control_plane.agents.sync_acceptance import SyncRequest
from control_plane.engine import due_rows
from control_plane.engine.engine import Engine
from control_plane.objects.store import model_code_key
from control_plane.state.sqlite import SqliteTable
from control_plane.usecases.submission import Submission, check_submission, submit_experiment
from lambdas.maintenance import Maintenance
from local_cluster.embedded_cluster import build_embedded_cluster
from local_cluster.home import HomeFolder
from tests.emulators.postgresql import postgresql

P95_MS_MAX = {"SQLite": 100, "PostgreSQL": 150}
CORES_MAX = 1.0
PERIOD_SECONDS = 15.0
TRIAL_SECONDS = 300.0
READ_SECONDS = 0.5
AWAY_MS = 30 * 60_000
RETURN_MS = 15_000
WATCHED_SECONDS = 120
LEASE_PASS_SECONDS = 5
CONFIG = """
name: lab
entrypoint: python train.py
searcher: {{name: random, metric: loss, max_length: {{batches: 100}}, max_trials: {trials},
  max_concurrent_trials: {concurrent}}}
hyperparameters: {{x: {{type: double, minval: 0, maxval: 1}}}}
"""


@dataclass
class _ScriptedAgent:
    """An enrolled agent with a slot. A running trial reports a metric with each call."""

    name: str
    token: str
    epoch: int
    random: Random
    calls: int = 0
    left: dict[str, int] = field(default_factory=dict)
    """The calls that are left of each running trial."""
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    finished: int = 0
    """The number of ended trials that the server has accepted."""
    steps: dict[str, int] = field(default_factory=dict)

    def body(self) -> dict[str, Any]:
        """Return the body of the next sync call."""
        self.calls += 1
        lines = [line for name in self.left for line in self._lines(name)]
        known = [*self.left, *self.ended]
        return {
            "epoch": self.epoch,
            "call": self.calls,
            "wait_ms": 0,
            "known": known,
            "reports": lines,
        }

    def apply(self, answer: dict[str, Any]) -> None:
        """Start and forget trials as an answer says."""
        for entry in answer["desired"]:
            name = entry["allocation"]
            if entry["state"] == "run" and name not in self.left and name not in self.ended:
                whole = int(TRIAL_SECONDS / PERIOD_SECONDS)
                # The first trials of all agents end at different times.
                self.left[name] = self.random.randint(1, whole) if not self.steps else whole
                self.entries[name] = entry
            elif entry["state"] == "forget":
                self.finished += 1
                self.left.pop(name, None)
                self.ended.discard(name)
        for name in [name for name, left in self.left.items() if left <= 0]:
            del self.left[name]
            self.ended.add(name)

    def _lines(self, name: str) -> Iterator[dict[str, Any]]:
        """Yield the report lines of a trial for this call."""
        step = self.steps[name] = self.steps.get(name, 0) + 1
        self.left[name] -= 1
        if self.left[name] > 0:
            line: dict[str, Any] = {
                "kind": "metrics",
                "group": "training",
                "steps_completed": step,
                "metrics": {"loss": 1 / step},
            }
            yield {"allocation": name, "writer": "0", "offset": step, "line": line}
            return
        for (writer, offset), line in end_of_trial(self.entries[name]).items():
            at = offset + step if writer == "0" else offset
            yield {"allocation": name, "writer": writer, "offset": at, "line": line}


def lab(scale: Scale) -> Iterator[Row]:
    """Yield the times of calls, the processor time of the server, and the restarted trials."""
    with TemporaryDirectory(prefix="detcloud-bench-", ignore_cleanup_errors=True) as folder:
        yield from _load_rows("SQLite", HomeFolder(Path(folder) / "sqlite"), scale)
        with postgresql(Path(folder) / "postgresql.log", is_durable=True) as database:
            home = HomeFolder(Path(folder) / "database")
            home.set_state_url(database.new_schema())
            yield from _load_rows("PostgreSQL", home, scale)
    yield _absence(scale)


def _load_rows(place: str, home: HomeFolder, scale: Scale) -> Iterator[Row]:
    """Yield the times of calls and the processor of a server with a busy lab."""
    what = f"{scale.agents:,} agents, {scale.lab_trials:,} trials, {place}"
    with progress(f"{what}: enrolment"):
        agents = _enrol_agents(home, scale)
    with serve_home(home) as url, progress(f"{what}: {scale.agent_rounds} calls of each"):
        pid = int(home.read_record("server")["pid"])
        load = _Load(url, (home.folder / "token").read_text().strip(), agents)
        asyncio.run(load.run(scale.agent_rounds, pid))
    if load.failures or not load.taken_ms:
        yield row_without_value(what, f"{load.failures} calls failed: {load.first_failure}")
        return
    ordered = sorted(load.taken_ms)
    beside = f"median {median(ordered):.0f} ms, p99 {_share(ordered, 0.99):.0f} ms, "
    beside += f"{len(ordered):,} calls, {load.ended:,} trials ended"
    yield at_most(
        f"API call, {what}, p95", _share(ordered, 0.95), P95_MS_MAX[place], "ms", beside=beside
    )
    yield at_most(f"processor of the server, {what}", load.cores, CORES_MAX, "cores")


def _enrol_agents(home: HomeFolder, scale: Scale) -> list[_ScriptedAgent]:
    """Enrol the agents, and submit the search, whose first trials are placed on the agents."""
    home.checkpoints.mkdir(exist_ok=True)
    cluster = build_embedded_cluster(home, USER)
    engine, service = cluster.cluster.engine, cluster.app.state.services.agents
    agents = []
    for number in range(scale.agents):
        name = f"agent-{number:04d}"
        epoch = service.enrol(name, POOL, ((0, "cuda", f"GPU-{number}", "GPU"),), "1")
        token = issue_agent_token(cluster.table, name, epoch)
        agents.append(_ScriptedAgent(name, token, epoch, Random(number)))
    services, code = cluster.app.state.services, empty_archive()
    digest = hashlib.sha256(code).hexdigest()
    services.objects.put(model_code_key(digest), code)
    config = CONFIG.format(trials=scale.lab_trials, concurrent=scale.agents)
    asked = Submission(config=config, model_code=digest)
    submitted = check_submission(services, asked, Principal(USER, Role.ADMIN))
    submit_experiment(services, submitted, USER, lambda reply: ())
    due_rows.process_due_rows(engine, budget_ms=600_000)
    cluster.table.close()
    return agents


class _Load:
    """The calls of the agents and of a user.

    `taken_ms`: times of the calls after each agent's first call. `failures`: number of failed
    calls. `ended`: number of ended trials. `cores`: processor time of the server by time.
    """

    def __init__(self, url: str, token: str, agents: list[_ScriptedAgent]) -> None:
        self._url, self._token, self._agents = url, token, agents
        self.taken_ms: list[float] = []
        self.failures = 0
        self.first_failure = ""
        self.ended = 0
        self.cores = 0.0

    async def run(self, rounds: int, pid: int) -> None:
        """Let each agent make `rounds` calls that count."""
        started = time.monotonic() + PERIOD_SECONDS
        tasks = [asyncio.create_task(self._live(agent, rounds)) for agent in self._agents]
        await asyncio.sleep(PERIOD_SECONDS)
        before = cpu_seconds(pid)
        reader = asyncio.create_task(self._read())
        await asyncio.gather(*tasks)
        self.ended = sum(agent.finished for agent in self._agents)
        self.cores = (cpu_seconds(pid) - before) / (time.monotonic() - started)
        reader.cancel()

    async def _live(self, agent: _ScriptedAgent, rounds: int) -> None:
        """Call as an agent does, at a random time of each period."""
        await asyncio.sleep(agent.random.uniform(0, PERIOD_SECONDS))
        for turn in range(rounds + 1):
            began = time.monotonic()
            path = f"/api/v1/agents/{agent.name}/sync"
            answer = await self._call("POST", path, agent.token, agent.body(), counts=turn > 0)
            if answer is not None:
                agent.apply(answer)
            await asyncio.sleep(max(0.0, PERIOD_SECONDS - (time.monotonic() - began)))

    async def _read(self) -> None:
        """Read lists as a user does, until the task is cancelled."""
        while True:
            for path in ("/api/v1/experiments", "/api/v1/experiments/1/trials?limit=50"):
                await self._call("GET", path, self._token, None, counts=True)
                await asyncio.sleep(READ_SECONDS)

    async def _call(
        self, method: str, path: str, token: str, body: object, *, counts: bool
    ) -> dict[str, Any] | None:
        """Make a call, and record its time. Return None for a failure."""
        began = time.perf_counter()
        try:
            answer: dict[str, Any] = await call_api(self._url, method, path, token, body)
        except CallFailed as failure:
            self.failures += 1
            self.first_failure = self.first_failure or f"{path}: {failure}"
            return None
        if counts:
            self.taken_ms.append(1000 * (time.perf_counter() - began))
        return answer


def _absence(scale: Scale) -> Row:
    """Count the trials that restart after agents were without a server for half an hour."""
    count = max(1, scale.agents // 5)
    with (
        TemporaryDirectory(prefix="detcloud-bench-") as folder,
        closing(SqliteTable(Path(folder) / "table.db")) as table,
        progress(f"{count} agents without a server"),
    ):
        now = [time.time_ns() // 1_000_000]
        server = _ScriptedServer(Engine(table, lambda: now[0]))
        server.begin(count)
        now[0] += AWAY_MS
        # The next server has no memory of the first one.
        server = _ScriptedServer(Engine(table, lambda: now[0]), server.epochs, server.known)
        server.return_agents(now)
        restarts, refused = server.restarts(), server.refused
    beside = f"{refused} calls refused; scripted clock, scripted agents, the server's code"
    what = f"restarted trials, {count} agents {AWAY_MS // 60_000} minutes without a server"
    return at_most(what, restarts + refused, 0, "", beside=beside)


class _ScriptedServer:
    """The server's code on an engine, and agents that call it. `refused`: refused calls."""

    def __init__(
        self,
        engine: Engine,
        epochs: dict[str, int] | None = None,
        known: dict[str, set[str]] | None = None,
    ) -> None:
        self._engine = engine
        self._service = new_service(engine)
        self._maintenance = Maintenance(engine)
        self.epochs = epochs or {}
        self.known = known or {}
        self.refused = 0

    def begin(self, count: int) -> None:
        """Enrol agents with a running trial each."""
        self._engine.execute_command(addresses.pool(POOL), PoolConfigured(POOL))
        for number in range(count):
            name = f"agent-{number}"
            self.epochs[name] = self._service.enrol(name, POOL, ((0, "cpu", name, "cpu"),), "1")
        self._engine.execute_command(
            addresses.experiment(1), submission_of(Load(count, concurrent=count))
        )
        due_rows.process_due_rows(self._engine)
        self._maintenance.mark_lost_agents(LEASE_PASS_SECONDS * 1000)
        for name in self.epochs:
            self.call(name)
        assert all(self.known.values()), "an agent has no trial"

    def call(self, name: str) -> None:
        """Sync as an agent whose trials continue."""
        known = self.known.setdefault(name, set())
        request = SyncRequest(self.epochs[name], tuple(known))
        try:
            answer = self._service.sync(name, request)
        except Exception:
            self.refused += 1
            return
        known.update(e["allocation"] for e in answer.desired if e["state"] == "run")

    def return_agents(self, now: list[int]) -> None:
        """Run ticks each second, while the agents return within RETURN_MS and call again."""
        random = Random(1)
        began = now[0]
        due = {name: began + random.randrange(RETURN_MS) for name in self.epochs}
        for second in range(WATCHED_SECONDS):
            if second % LEASE_PASS_SECONDS == 0:
                self._maintenance.mark_lost_agents(LEASE_PASS_SECONDS * 1000)
            self._maintenance.redrive_mail()
            for name in [name for name, due_ms in due.items() if due_ms <= now[0]]:
                self.call(name)
                due[name] = now[0] + RETURN_MS
            now[0] += 1000

    def restarts(self) -> int:
        """Return the number of lost and failed runs of all trials."""
        names = [f"trial#{number + 1}" for number in range(len(self.epochs))]
        states = [state for name in names if (state := self._engine.read_state(name)) is not None]
        assert len(states) == len(names), "a trial is missing"
        return sum(state.losses + state.restarts for state in states)


def _share(ordered: list[float], share: float) -> float:
    return ordered[ceil(share * len(ordered)) - 1]
