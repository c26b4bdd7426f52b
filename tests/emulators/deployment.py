"""A team's whole cluster on this machine: its stack on the emulator, its stream, its ticks, and
instances that are real processes.
"""

import hashlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from detcloud.client import Client
from infra.aws.program import run
from tests.emulators.ec2.machine import Machine
from tests.emulators.ec2.region import Region
from tests.emulators.ec2.serving import Ec2Server, ec2_server
from tests.emulators.machines import Machines
from tests.emulators.materialise import Materialised, materialise
from tests.emulators.ministack import ACCOUNT, REGION, Ministack
from tests.emulators.stream import Pump

# A minute is long where somebody waits for it.
TICK_SECONDS = 2.0
INVOKE_SECONDS_MAX = 120
POOL = "gpus"
POOLS = f"""
resource_manager:
  default_compute_resource_pool: {POOL}
  default_aux_resource_pool: {POOL}
resource_pools:
  - pool_name: {POOL}
    provider:
      type: aws
      max_instances: 2
      max_idle_agent_period: 5s
      offerings:
        - {{instance_type: g5.xlarge, zone: us-east-1a, market: spot, slots: 1}}
        - {{instance_type: g5.xlarge, zone: us-east-1b, market: spot, slots: 1}}
"""


@dataclass
class Deployment:
    """A deployed cluster. `outputs` are its stack's."""

    team: str
    aws: Ministack
    ec2: Ec2Server
    machines: Machines
    pump: Pump
    outputs: Mapping[str, Any]
    token: str
    ticking: bool = True
    failures: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Of the API."""
        return str(self.outputs["url"])

    def client(self) -> Client:
        """The administrator's."""
        return Client(self.url, self.token)

    def invoke(self, function: str, event: object) -> Any:
        """Calls a function; what it answers, or fails with."""
        client = self.aws.client("lambda", read_timeout=INVOKE_SECONDS_MAX)
        payload = json.dumps(event)
        answer = client.invoke(FunctionName=self.function(function), Payload=payload)
        said = json.loads(answer["Payload"].read() or b"null")
        if answer.get("FunctionError"):
            raise AssertionError(f"{function} failed: {said}")
        return said

    def function(self, name: str) -> str:
        """What a function is called there."""
        return f"detcloud-{self.team}-{name.replace('_', '-')}"

    def rows(self) -> list[tuple[str, str]]:
        """The keys of the table's rows."""
        table = self.outputs["table"]
        pages = self.aws.client("dynamodb").get_paginator("scan").paginate(TableName=table)
        return sorted((it["p"]["S"], it["s"]["S"]) for page in pages for it in page["Items"])

    def living(self) -> list[Machine]:
        """Instances that are billed."""
        return self.ec2.region.living()


@contextmanager
def deployment(
    aws: Ministack, archive: Path, folder: Path, team: str = "vision", pools: str = POOLS
) -> Iterator[Deployment]:
    """A team's cluster, from its stack to its scale to zero."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "pools.yaml").write_text(pools)
    token = f"dct_of-the-administrator-of-{team}"
    config = {
        "detcloud:account": ACCOUNT,
        "detcloud:region": REGION,
        "detcloud:clusterConfig": str(folder / "pools.yaml"),
        "detcloud:adminSha256": hashlib.sha256(token.encode()).hexdigest(),
        "detcloud:archive": str(archive),
    }
    region = Region(lambda: time.time_ns() // 1_000_000, running_ms=500, ending_ms=500)
    with ExitStack() as stack:
        ec2 = stack.enter_context(ec2_server(region, beats=True))
        urls = {"AWS_ENDPOINT_URL": aws.url, "AWS_ENDPOINT_URL_EC2": ec2.url}
        made = Materialised(aws, environment=urls, streams=False)
        outputs = materialise(run, team, config, made)
        subnets = aws.client("ec2").describe_subnets()["Subnets"]
        region.subnets.update({it["SubnetId"]: it["AvailabilityZone"] for it in subnets})
        _issue_keys(aws, region, team)
        machines = Machines(ec2, folder / "machines", {"AWS_ENDPOINT_URL_STS": aws.url})
        stack.callback(machines.end_all)
        region.on_running, region.on_terminated = machines.boot, machines.end
        pump = stack.enter_context(Pump(aws, outputs["table"]).running())
        deployed = Deployment(team, aws, ec2, machines, pump, outputs, token)
        stack.enter_context(_ticks(deployed))
        yield deployed


def _issue_keys(aws: Ministack, region: Region, team: str) -> None:
    """An instance's metadata gives it keys of its role, in a session of its own name."""
    role = f"arn:aws:iam::{ACCOUNT}:role/detcloud-{team}-instance"
    sts = aws.client("sts")

    def keys(machine: Machine) -> Mapping[str, str]:
        given = sts.assume_role(RoleArn=role, RoleSessionName=machine.id)["Credentials"]
        names = ("AccessKeyId", "SecretAccessKey")
        return {name: given[name] for name in names} | {"Token": given["SessionToken"]}

    region.keys = keys


@contextmanager
def _ticks(deployed: Deployment) -> Iterator[None]:
    stopped = threading.Event()

    def run() -> None:
        while not stopped.wait(TICK_SECONDS):
            if not deployed.ticking:
                continue
            try:
                deployed.invoke("tick", {})
            except Exception as error:
                deployed.failures.append(str(error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(INVOKE_SECONDS_MAX)


def wait_until(holds: Callable[[], bool], seconds: float, what: str) -> None:
    """Looks until it holds. Raises AssertionError."""
    give_up_at = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < give_up_at, f"{what}: waited {seconds} s in vain"
        time.sleep(0.2)
