"""The end of a cluster's instances, on the simulated EC2 under a virtual clock."""

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError, NoCredentialsError

from control_plane.fleet.records import IntentRow
from infra.aws.draining import drain, find_leftovers
from infra.aws.functions import SIZES
from infra.aws.instance_ends import VISIBLE_SECONDS
from infra.aws.names import Names
from infra.drain_clock import Clock
from infra.stack_program import DrainFailed
from tests.unit.provisioner.ec2_account import Account, open_account, request

# The cluster of `request` is c1.
OWN, OTHER = "detcloud-own", "detcloud-other"
NAMES = Names("own", "123456789012", "us-east-1")


class Aws:
    """The account's EC2, and stand-ins for the calls of a drain to other services."""

    def __init__(self, account: Account) -> None:
        self.account = account
        self.stopped: list[str] = []
        self.is_protected = self.has_functions = False
        self.relays: list[str] | None = None
        self.lines: list[str] = []

    def __call__(self, service: str) -> Any:
        return self.account.api if service == "ec2" else self

    def describe_table(self, TableName: str) -> Any:
        return {"Table": {"DeletionProtectionEnabled": self.is_protected}}

    def put_function_concurrency(self, FunctionName: str, **asked: Any) -> None:
        if not self.has_functions:
            error = {"Error": {"Code": "ResourceNotFoundException"}}
            raise ClientError(error, "PutFunctionConcurrency")
        assert asked == {"ReservedConcurrentExecutions": 0}
        self.stopped.append(FunctionName)

    def list_tasks(self, cluster: str) -> Any:
        assert cluster == "detcloud-own-relay"
        if self.relays is None:
            raise ClientError({"Error": {"Code": "ClusterNotFoundException"}}, "ListTasks")
        return {"taskArns": [f"arn:aws:ecs:task/{cluster}/{task}" for task in self.relays]}

    def stop_task(self, cluster: str, task: str, **asked: Any) -> None:
        self.stopped.append(task)

    @property
    def clock(self) -> Clock:
        def sleep(seconds: float) -> None:
            self.account.now_ms += int(seconds * 1000)

        return Clock(lambda: self.account.now_ms / 1000, sleep)

    def drain(self) -> Any:
        return drain(NAMES, self, self.lines.append, self.clock)


@pytest.fixture(scope="module")
def lasting() -> Iterator[Account]:
    with open_account() as account:
        yield account


@pytest.fixture
def aws(lasting: Account) -> Aws:
    lasting.reset(ending_ms=8_000)
    return Aws(lasting)


def launch(aws: Aws, cluster: str, name: str, count: int = 1) -> None:
    intent = request(name, count=count)
    values = {field: getattr(intent, field) for field in IntentRow.__dataclass_fields__}
    aws.account.cloud().launch(IntentRow(**{**values, "cluster": cluster}))


def living(aws: Aws) -> set[str]:
    region = aws.account.region
    return {billed_machine.tags["detcloud-cluster"] for billed_machine in region.billed_machines()}


def test_drain_removes_only_the_clusters_instances_and_templates(aws: Aws) -> None:
    launch(aws, OWN, "a", count=2)
    launch(aws, OTHER, "b")
    drained = aws.drain()
    assert (drained.instances, drained.templates) == (2, 1)
    assert living(aws) == {OTHER}
    [left] = aws.account.region.templates.values()
    assert left.tags["detcloud-cluster"] == OTHER


def test_drain_stops_the_relay(aws: Aws) -> None:
    aws.relays = ["1f"]
    aws.drain()
    assert aws.stopped == ["arn:aws:ecs:task/detcloud-own-relay/1f"]
    assert "the relay's task 1f is stopped" in aws.lines


def test_drain_finds_a_launch_that_was_under_way(aws: Aws) -> None:
    """A tick that is running when ticks are stopped may launch until its time limit."""
    aws.has_functions = True
    quiet_seconds = SIZES["tick"].seconds_max + VISIBLE_SECONDS
    began_ms = aws.account.now_ms
    sleep, launched = aws.clock.sleep, list[bool]()

    def sleep_while_a_tick_launches(seconds: float) -> None:
        sleep(seconds)
        if aws.account.now_ms - began_ms >= 55_000 and not launched:
            launched.append(True)
            launch(aws, OWN, "late")

    clock = Clock(aws.clock.seconds, sleep_while_a_tick_launches)
    drained = drain(NAMES, aws, aws.lines.append, clock)
    assert (drained.instances, drained.templates) == (1, 1)
    assert aws.stopped == ["detcloud-own-tick", "detcloud-own-wake"]
    assert aws.account.now_ms - began_ms >= quiet_seconds * 1000
    assert living(aws) == set()


def test_protected_table_stops_the_drain_before_terminations(aws: Aws) -> None:
    launch(aws, OWN, "a")
    aws.is_protected = True
    with pytest.raises(DrainFailed, match="detcloud-own is protected"):
        aws.drain()
    assert living(aws) == {OWN}


def test_error_names_instances_that_do_not_terminate(aws: Aws) -> None:
    aws.account.reset(ending_ms=3_600_000)
    launch(aws, OWN, "a")
    [machine] = aws.account.region.machines
    with pytest.raises(DrainFailed, match=f"{machine} did not end in 900 s"):
        aws.drain()


def test_second_drain_finds_no_instances(aws: Aws) -> None:
    launch(aws, OWN, "a")
    aws.drain()
    drained = aws.drain()
    assert (drained.instances, drained.templates) == (0, 0)


@pytest.mark.parametrize(
    "error",
    [
        ClientError({"Error": {"Code": "UnauthorizedOperation"}}, "DescribeTable"),
        NoCredentialsError(),
    ],
)
def test_drain_reports_refusals_of_aws(error: Exception) -> None:
    def refuse(service: str) -> Any:
        raise error

    with pytest.raises(DrainFailed, match="AWS refused a request, try again: "):
        drain(NAMES, refuse, lambda line: None)
    assert find_leftovers(NAMES, refuse) == [f"AWS did not return the remaining resources: {error}"]


def test_leftovers_exclude_terminated_instances(aws: Aws) -> None:
    launch(aws, OWN, "a")
    launch(aws, OWN, "b")
    first, second = sorted(aws.account.region.machines)
    aws.account.api.terminate_instances(InstanceIds=[first])
    aws.account.now_ms += 60_000
    arns = [f"arn:aws:ec2:us-east-1:1:instance/{text}" for text in (first, second)]
    pages = [{"ResourceTagMappingList": [{"ResourceARN": arn} for arn in (*arns, "arn:aws:sqs:x")]}]

    class Tags:
        def get_paginator(self, name: str) -> "Tags":
            assert name == "get_resources"
            return self

        def paginate(self, TagFilters: Any) -> Any:
            assert TagFilters == [{"Key": "detcloud-cluster", "Values": [OWN]}]
            return pages

    def clients(service: str) -> Any:
        return aws.account.api if service == "ec2" else Tags()

    assert find_leftovers(NAMES, clients) == [arns[1], "arn:aws:sqs:x"]
