"""A deployed cluster in this process with usage that is counted like AWS's bill.

The parts are the application behind Mangum, the function behind the table's stream, the tick, and a
cloud of machines that boot agents. Time is virtual. The table is in memory behind the meter. Each
function has a separate engine, like a separate process.
"""

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import urlsplit

from mangum import Mangum

from bench.metered_table import Bill, MeteredTable, OnBill, OnRead
from bench.talking_agent import TalkingAgent, TrialScript
from control_plane.access.principals import Principal, Role
from control_plane.access.tokens import StaticTokens, token_digest
from control_plane.actors import addresses
from control_plane.actors.experiment.state import ExperimentState
from control_plane.actors.records import Status
from control_plane.agents.identity import Proof, Signer
from control_plane.checkpoint_stores.types.directory import Directory
from control_plane.config.pools import check_cluster
from control_plane.engine.engine import Engine
from control_plane.fleet.notices import InstanceNotice, read_notices
from control_plane.objects.directory import DirectoryObjectStore
from control_plane.objects.signing import HmacUrlSigner
from control_plane.objects.store import ObjectKey, ObjectStore, model_code_key
from control_plane.state.memory import MemoryTable
from control_plane.state.table import Delete, Expect, Put, StateTable, Write
from control_plane.usecases.cluster_configuration import apply_configuration, check_configuration
from control_plane.usecases.idempotency import no_extra_writes
from infra.aws.events import GATHER_SECONDS, INTENTS, MAIL
from lambdas.adapters import Adapters
from lambdas.aws.stream import advance_receivers, key_of
from lambdas.builder import Cluster
from lambdas.deployed_configuration import APPLIED
from lambdas.tick_steps import TickSteps, run_steps
from provisioner.clouds.fake.provider import FakeCloud, FakeRules
from provisioner.clouds.provider import CloudProvider
from provisioner.engine_pools import EnginePools
from provisioner.model import ProvisionerSettings
from simulator.faults.table_faults import TableDecorator
from tests.emulators.stream import matches

CLUSTER, POOL, HOST = "detcloud-bench", "gpus", "api.bench"
PERSON = "dct_somebody-who-submits-to-a-bench-of-clusters"
BEGAN_MS = 1_800_000_000_000
MINUTE_MS = 60_000
RULES = FakeRules(running_ms=(10_000, 10_000), boot_ms=(30_000, 30_000), ending_ms=(5_000, 5_000))
POOLS = """
resource_manager: {default_compute_resource_pool: gpus, default_aux_resource_pool: gpus}
resource_pools:
  - pool_name: gpus
    provider:
      type: PROVIDER
      max_instances: 1000
      max_idle_agent_period: 5m
      offerings:
        - {instance_type: TYPE, zone: ZONE, market: spot, slots: SLOTS, price_per_hour: 1}
"""
CODE = b"the bench's model code"
CONTEXT: Any = None
CONFIGURATION_SHA256 = "applied"


@dataclass
class Usage:
    """Billed usage.

    By function: `invocations`, `calls` of the table (for the running time), `writes` (write units),
    `read_halves` (halves of read units), `waited_ms`, and `deletes` of rows. `requests`: calls of
    the API. `puts`: stored objects.
    """

    requests: int = 0
    puts: int = 0
    invocations: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    writes: Counter[str] = field(default_factory=Counter)
    read_halves: Counter[str] = field(default_factory=Counter)
    waited_ms: Counter[str] = field(default_factory=Counter)
    deletes: Counter[str] = field(default_factory=Counter)

    @property
    def write_units(self) -> int:
        """Write units of all functions."""
        return self.writes.total()

    @property
    def read_units(self) -> float:
        """Read units of all functions."""
        return self.read_halves.total() / 2

    def __sub__(self, before: "Usage") -> "Usage":
        return Usage(
            self.requests - before.requests,
            self.puts - before.puts,
            *(now - then for now, then in zip(self._counters, before._counters, strict=True)),
        )

    def copy(self) -> "Usage":
        """Usage up to now."""
        return self - Usage()

    def without(self, function: str) -> "Usage":
        """Return the usage without a function."""
        only = Counter({function: 1 << 60})
        return Usage(self.requests, self.puts, *(counted - only for counted in self._counters))

    @property
    def _counters(self) -> tuple[Counter[str], ...]:
        counters = (self.invocations, self.calls, self.writes, self.read_halves)
        return (*counters, self.waited_ms, self.deletes)


class MeteredCluster:
    """A cluster with a pool of `instance_type` whose trials follow `course`.

    A context manager. Only a single cluster may be open at a time.
    """

    provider, zone = "aws", "us-east-1a"
    meter: Callable[[StateTable, OnBill, OnRead], TableDecorator] = MeteredTable
    gather_ms = GATHER_SECONDS * 1000

    def __init__(
        self, folder: Path, course: TrialScript, instance_type: str = "g4dn.xlarge", slots: int = 1
    ) -> None:
        self.usage = Usage()
        self.now_ms = BEGAN_MS
        self.agents: dict[str, TalkingAgent] = {}
        self.course = course
        self._open = ExitStack()
        self._function = ""
        self._ticks_ms = BEGAN_MS
        self._streams = {
            "advance": _Stream(MAIL, self.gather_ms),
            "tick": _Stream(INTENTS, self.gather_ms),
        }
        self.table = type(self).meter(MemoryTable(), self._count_commit, self._read)
        self.objects = _Objects(folder / "objects", self.usage)
        self.checkpoints = folder / "checkpoints"
        self.checkpoints.mkdir()
        names = ("api", *self._streams, "checkpoint_gc")
        self._functions = {name: Cluster(_MeteredAdapters(self)) for name in names}
        self._steps = TickSteps(self._functions["tick"])
        config = POOLS.replace("PROVIDER", self.provider).replace("ZONE", self.zone)
        config = config.replace("TYPE", instance_type).replace("SLOTS", str(slots))
        self._configure(config)
        self.objects.put(model_code_key(hashlib.sha256(CODE).hexdigest()), CODE)
        offerings = self._pool_settings().offerings
        self.cloud = FakeCloud(self._clock, Random(1), offerings, RULES)

    def __enter__(self) -> "MeteredCluster":
        self._open.enter_context(_event_loop())
        first = StaticTokens({token_digest(PERSON): Principal("bench", Role.ADMIN)})
        self._function_of_api = Mangum(self._functions["api"].build_app(first), lifespan="off")
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def request(
        self, method: str, path: str, token: str | None = None, content: object = None
    ) -> Any:
        """Send a request to the API and return the parsed JSON, or None for other content. Raise
        RuntimeError for a refusal.
        """
        self.usage.requests += 1
        with self._running("api"):
            answer = self._function_of_api(_event(method, path, token, content), CONTEXT)
        if answer["statusCode"] >= 300:
            raise RuntimeError(f"{method} {path}: {answer['statusCode']} {answer['body']}")
        is_json = answer["headers"].get("content-type") == "application/json"
        return json.loads(answer["body"]) if is_json else None

    def submit(self, config: str) -> int:
        """Submit an experiment like `detcloud create` and return its number."""
        digest = hashlib.sha256(CODE).hexdigest()
        offer = {"sha256": digest, "size": len(CODE)}
        self.request("POST", "/api/v1/model-code", PERSON, offer)
        asked = {"config": config, "model_code": digest}
        created: int = self.request("POST", "/api/v1/experiments", PERSON, asked)["id"]
        return created

    def pass_time(self, ms_max: int, over: Callable[[], bool] = lambda: False) -> Usage:
        """Let time pass until `over` returns true, at most `ms_max`, and return the usage
        meanwhile.
        """
        before, until_ms = self.usage.copy(), self.now_ms + ms_max
        while self.now_ms < until_ms and not over():
            self._pass_to_next(until_ms)
        return self.usage - before

    def status(self, experiment: int) -> Status:
        """Status of an experiment, seen without a read that is billed."""
        state = Engine(self.table.table, self._clock).read_state(addresses.experiment(experiment))
        assert isinstance(state, ExperimentState)
        return state.status

    def _pass_to_next(self, until_ms: int) -> None:
        """Advance the clock to the next event and run the event, or advance to `until_ms`."""
        self._boot()
        moments: list[tuple[int, Callable[[], None]]] = [(self._ticks_ms, self._tick)]
        for name, stream in self._streams.items():
            if stream.waiting:
                moments.append((stream.due_ms, partial(self._deliver, name)))
        moments += [(agent.due_ms, agent.call_once) for agent in self.agents.values()]
        due_ms, act = min(moments, key=lambda moment: moment[0])
        if due_ms > until_ms:
            self.now_ms = until_ms
            return
        self.now_ms = max(self.now_ms, due_ms)
        act()

    def _boot(self) -> None:
        """Add the agents of running machines, and remove the agents of ended machines."""
        for machine in self.cloud.machines.values():
            if machine.is_agent_up(self.now_ms) and machine.id not in self.agents:
                agent = TalkingAgent(self, machine.id, POOL, machine.offering.slots, self.course)
                self.agents[machine.id] = agent
            elif machine.id in self.agents and not machine.is_agent_up(self.now_ms):
                del self.agents[machine.id]

    def _tick(self) -> None:
        self._ticks_ms += MINUTE_MS
        steps = self._steps.minute_steps(lambda **numbers: None)
        with self._running("tick"):
            run_steps(steps, self.now_ms, lambda: MINUTE_MS)

    def _deliver(self, name: str) -> None:
        records = self._streams[name].clear_batch()
        with self._running(name):
            if name == "tick":
                self._wake(records)
                return
            served = advance_receivers(self._functions[name].engine, records, lambda: MINUTE_MS)
            if served.failed:
                raise RuntimeError(f"{len(served.failed)} records failed")

    def _wake(self, records: list[dict[str, Any]]) -> None:
        """Run the steps for records. Early records are delivered again later, and only this
        function waits.
        """
        partitions = [key_of(record).partition for record in records]
        steps = self._steps.row_steps(partitions)
        again_ms = run_steps(steps, self.now_ms, lambda: MINUTE_MS)
        if again_ms:
            self.usage.waited_ms["tick"] += again_ms
            self._streams["tick"].take_again(records, self.now_ms + again_ms)

    @contextmanager
    def _running(self, function: str) -> Iterator[None]:
        self.usage.invocations[function] += 1
        before, self._function = self._function, function
        try:
            yield
        finally:
            self._function = before

    def collect(self) -> None:
        """Run the checkpoint collector until its first pause. A later tick continues."""
        with self._running("checkpoint_gc"):
            collector = self._functions["checkpoint_gc"].collector
            while not collector.pause_seconds and collector.collect():
                pass

    def _configure(self, config: str) -> None:
        services = self._functions["api"].services
        apply_configuration(
            services, check_configuration(services, check_cluster(config)), "bench", no_extra_writes
        )
        self.table.commit((Put(APPLIED, 1, CONFIGURATION_SHA256.encode(), Expect.ABSENT),))
        for stream in self._streams.values():
            stream.clear_batch()

    def _pool_settings(self) -> ProvisionerSettings:
        settings = EnginePools(self._functions["api"].engine).pool_snapshot(POOL).settings
        assert settings is not None
        return settings

    def _clock(self) -> int:
        return self.now_ms

    def _count_commit(self, writes: Sequence[Write], bill: Bill) -> None:
        self.usage.writes[self._function] += bill.units
        self.usage.calls[self._function] += 1
        deletes = sum(isinstance(write, Delete) for write in writes)
        self.usage.deletes[self._function] += deletes
        for write in writes:
            for stream in self._streams.values():
                if isinstance(write, Put) and write.expect is Expect.ABSENT:
                    stream.take(write, self.now_ms)

    def _read(self, units: float) -> None:
        self.usage.read_halves[self._function] += int(2 * units)
        self.usage.calls[self._function] += 1


class _Stream:
    """A mapping of the table's stream to a function: gathers records that match a pattern."""

    def __init__(self, pattern: object, gather_ms: int) -> None:
        self._gather_ms = gather_ms
        self.waiting: list[dict[str, Any]] = []
        self.due_ms = 0
        self._pattern = pattern

    def take(self, put: Put, now_ms: int) -> None:
        """Add a new row if the row matches the pattern."""
        keys = {"p": {"S": put.key.partition}, "s": {"S": put.key.sort}}
        about = {"Keys": keys, "SequenceNumber": str(len(self.waiting))}
        record = {"eventName": "INSERT", "dynamodb": about}
        if matches(self._pattern, record):
            if not self.waiting:
                self.due_ms = now_ms + self._gather_ms
            self.waiting.append(record)

    def take_again(self, records: list[dict[str, Any]], due_ms: int) -> None:
        """Put records of a batch back and deliver at `due_ms`."""
        self.waiting[:0] = records
        self.due_ms = due_ms

    def clear_batch(self) -> list[dict[str, Any]]:
        """Return and remove all gathered records."""
        records, self.waiting = self.waiting, []
        return records


class _Objects(DirectoryObjectStore):
    """An object store that counts puts."""

    def __init__(self, folder: Path, usage: Usage) -> None:
        super().__init__(folder, HmacUrlSigner(b"s" * 32))
        self._usage = usage

    def put(
        self, key: ObjectKey, content: bytes | Iterable[bytes], *, if_absent: bool = False
    ) -> bool:
        self._usage.puts += 1
        return super().put(key, content, if_absent=if_absent)


class _TrustingVerifier:
    """A verifier that returns the signature's text as the instance's name."""

    cloud = "AWS"

    def verify_proof(self, proof: Proof) -> Signer:
        return Signer(proof.fields["authorization"])


class _MeteredAdapters(Adapters):
    """The adapters of a function of the cluster."""

    cluster_id = CLUSTER
    api_hosts = frozenset({HOST})
    configuration_sha256 = CONFIGURATION_SHA256

    def __init__(self, cluster: MeteredCluster) -> None:
        self._cluster = cluster
        self.provider_types = frozenset({cluster.provider})

    def find_verifier(self, provider_type: str) -> _TrustingVerifier:
        """Return the verifier that accepts all proofs."""
        return _TrustingVerifier()

    @property
    def state_table(self) -> StateTable:
        return self._cluster.table

    @property
    def object_store(self) -> ObjectStore:
        return self._cluster.objects

    @property
    def checkpoint_storage(self) -> Directory:
        return Directory(type="directory", container_path=str(self._cluster.checkpoints))

    @property
    def url_signer(self) -> HmacUrlSigner:
        return HmacUrlSigner(b"s" * 32)

    @property
    def random(self) -> Random:
        return Random(1)

    def clock(self) -> int:
        return self._cluster.now_ms

    def cloud_provider(self, settings: ProvisionerSettings) -> CloudProvider:
        self._check_provider_type(settings)
        return self._cluster.cloud

    def instance_notices(self) -> Iterable[InstanceNotice]:
        return read_notices(self.state_table)

    def invoke_function(self, name: str) -> None:
        self._cluster.collect()


@contextmanager
def _event_loop() -> Iterator[None]:
    """Set an event loop for Mangum and close the loop at the end. Mangum would leave its own loop
    open.
    """
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        yield
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _event(method: str, path: str, token: str | None, content: object) -> dict[str, Any]:
    """Return a request in the format that API Gateway passes to a function."""
    headers = {"host": HOST, "content-type": "application/json"}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    asked = urlsplit(path)
    return {
        "version": "2.0",
        "rawPath": asked.path,
        "rawQueryString": asked.query,
        "headers": headers,
        "requestContext": {"http": {"method": method, "path": path, "sourceIp": "192.0.2.1"}},
        "body": None if content is None else json.dumps(content),
        "isBase64Encoded": False,
    }
