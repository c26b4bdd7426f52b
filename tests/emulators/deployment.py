"""A team's whole cluster on this machine: stack and stream on the emulator, ticks, and instances as
real processes.

Several teams may share an account.
"""

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from control_plane.aws.state_table import DynamoDbTable
from detcloud.client import Client
from infra.aws.program import run
from provisioner.clouds.provider import CLUSTER_TAG
from tests.emulators.ec2.machine import Machine
from tests.emulators.ec2.region import Region
from tests.emulators.ec2.serving import Ec2Server, ec2_server
from tests.emulators.ec2_machines import connect_machines, issue_keys
from tests.emulators.expected_errors import describe_error
from tests.emulators.machines import Machines
from tests.emulators.materialise import EmulatorMaker, materialise
from tests.emulators.ministack import ACCOUNT, REGION, Ministack
from tests.emulators.minutes import TICK_SECONDS, minutes
from tests.emulators.stream import INVOKE_SECONDS_MAX, Pump
from tests.emulators.throttling import ThrottledTables, throttling


@dataclass
class Account:
    """An account of AWS.

    `aws`: the emulator's services. `tables`: DynamoDB as functions reach the service. `ec2` and
    `machines`: EC2 and the processes of its instances. `archives`: the functions' archives by kind.
    `folder`: the place of files and logs.
    """

    aws: Ministack
    tables: ThrottledTables
    ec2: Ec2Server
    machines: Machines
    archives: Mapping[str, Path]
    folder: Path


@dataclass
class Stack:
    """A team's stack in an account. Functions run only when a test invokes them."""

    account: Account
    team: str
    outputs: Mapping[str, Any]
    token: str

    @property
    def aws(self) -> Ministack:
        """The account's services."""
        return self.account.aws

    @property
    def url(self) -> str:
        """The address of the API."""
        return str(self.outputs["url"])

    def client(self, token: str | None = None) -> Client:
        """Return a client with the administrator's token, or with `token`."""
        return Client(self.url, token or self.token)

    def invoke(self, function: str, event: object) -> Any:
        """Invoke a function and return the function's answer. Raise AssertionError if the function
        fails.
        """
        client = self.aws.client("lambda", read_timeout=INVOKE_SECONDS_MAX)
        payload = json.dumps(event)
        answer = client.invoke(FunctionName=self.function_name(function), Payload=payload)
        result = json.loads(answer["Payload"].read() or b"null")
        if answer.get("FunctionError"):
            raise AssertionError(f"{function} failed: {result}")
        return result

    def function_name(self, name: str) -> str:
        """Return the name that a function has in the account."""
        return f"detcloud-{self.team}-{name.replace('_', '-')}"

    def log_messages(self, function: str) -> list[str]:
        """Return every line of a function's log."""
        pages = self.aws.client("logs").get_paginator("filter_log_events")
        group = f"/aws/lambda/{self.function_name(function)}"
        return [
            event["message"]
            for page in pages.paginate(logGroupName=group)
            for event in page["events"]
        ]

    def logged_errors(self) -> list[str]:
        """Return the errors in the logs of all functions."""
        groups = self.aws.client("logs").get_paginator("describe_log_groups")
        prefix = f"/aws/lambda/{self.function_name('')}"
        errors = []
        for page in groups.paginate(logGroupNamePrefix=prefix):
            for group in page["logGroups"]:
                function = group["logGroupName"].removeprefix(prefix)
                lines = map(_parse_line, self.log_messages(function))
                errors += [
                    describe_error(function, str(line["message"]), str(line.get("exception", "")))
                    for line in lines
                    if line.get("level") == "ERROR"
                ]
        return errors

    def rows(self) -> list[tuple[str, str]]:
        """Return the keys of the table's rows."""
        table = self.outputs["table"]
        pages = self.aws.client("dynamodb").get_paginator("scan").paginate(TableName=table)
        return sorted((item["p"]["S"], item["s"]["S"]) for page in pages for item in page["Items"])

    @property
    def machines(self) -> Machines:
        """The processes of the account's instances."""
        return self.account.machines

    def state_table(self) -> DynamoDbTable:
        """Return the stack's state."""
        return DynamoDbTable(self.aws.client("dynamodb"), self.outputs["table"])

    def stored_checkpoints(self) -> list[str]:
        """Return the keys of the objects in the bucket of checkpoints."""
        listing = self.aws.client("s3").list_objects_v2(Bucket=self.outputs["checkpoints"])
        return [content["Key"] for content in listing.get("Contents", ())]

    def read_checkpoint(self, name: str) -> bytes:
        """Return the content of an object in the bucket of checkpoints."""
        place = {"Bucket": self.outputs["checkpoints"], "Key": name}
        content: bytes = self.aws.client("s3").get_object(**place)["Body"].read()
        return content

    def billed_instances(self) -> list[Machine]:
        """Return the stack's instances that are billed."""
        cluster = self.outputs["cluster"]
        living = self.account.ec2.region.billed_machines()
        return [machine for machine in living if machine.tags.get(CLUSTER_TAG) == cluster]


@dataclass
class Deployment(Stack):
    """A running cluster: the stream is delivered and ticks run periodically."""

    pump: Pump
    failures: list[str] = field(default_factory=list)
    tick_seconds: float = TICK_SECONDS

    def tick(self) -> None:
        """Invoke the function that runs each minute."""
        self.invoke("tick", {})


def _parse_line(text: str) -> Mapping[str, Any]:
    """Return the fields of a line of a function's log, or an empty map for lines of Lambda."""
    try:
        line = json.loads(text)
    except ValueError:
        return {}
    return line if isinstance(line, dict) else {}


@contextmanager
def account(aws: Ministack, archives: Mapping[str, Path], folder: Path) -> Iterator[Account]:
    """Open an account for stacks that run the functions in `archives`, by kind.

    The block's end terminates all machines.
    """
    region = Region(lambda: time.time_ns() // 1_000_000, running_ms=500, ending_ms=500)
    with throttling(aws.url) as tables, ec2_server(region, beats=True) as ec2:
        machines = connect_machines(ec2, folder / "machines", {"AWS_ENDPOINT_URL_STS": aws.url})
        issue_keys(aws, region)
        try:
            yield Account(aws, tables, ec2, machines, archives, folder)
        finally:
            machines.end_all()


def stack(
    into: Account,
    team: str,
    pools: str,
    settings: Mapping[str, str] = MappingProxyType({}),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Stack:
    """Make a team's stack with the resource pools in `pools`.

    `settings` and `environment` add settings and variables of the functions.
    """
    config_file = into.folder / f"{team}.yaml"
    config_file.write_text(pools)
    token = f"dct_of-the-administrator-of-{team}"
    config = {
        "detcloud:account": ACCOUNT,
        "detcloud:region": REGION,
        "detcloud:clusterConfig": str(config_file),
        "detcloud:adminSha256": hashlib.sha256(token.encode()).hexdigest(),
        "detcloud:archive": str(into.archives["functions"]),
        "detcloud:suggestArchive": str(into.archives["suggest"]),
        **settings,
    }
    urls = {
        "AWS_ENDPOINT_URL": into.aws.url,
        "AWS_ENDPOINT_URL_DYNAMODB": into.tables.url,
        "AWS_ENDPOINT_URL_EC2": into.ec2.url,
        **environment,
    }
    made = EmulatorMaker(into.aws, environment=urls, streams=False)
    outputs = materialise(run, team, config, made)
    for bucket in (outputs["objects"], outputs["checkpoints"]):
        # The policy refuses requests without TLS, and the emulator has no TLS.
        into.aws.client("s3").delete_bucket_policy(Bucket=bucket)
    subnets = into.aws.client("ec2").describe_subnets()["Subnets"]
    zones = {subnet["SubnetId"]: subnet["AvailabilityZone"] for subnet in subnets}
    into.ec2.region.subnets.update(zones)
    return Stack(into, team, outputs, token)


@contextmanager
def running(made: Stack) -> Iterator[Deployment]:
    """Run the cluster of a stack until the block ends."""
    with ExitStack() as stack:
        pump = stack.enter_context(Pump(made.aws, made.outputs["table"]).running())
        deployed = Deployment(made.account, made.team, made.outputs, made.token, pump)
        stack.enter_context(minutes(deployed, INVOKE_SECONDS_MAX))
        yield deployed
