"""The relay's task on AWS: real processes with the task's role, on an emulator with enforced IAM.

The emulator's ECS runs nothing, so a process executes what the task's definition describes. The
emulator does not check conditions on leading keys, which `tests/unit/infra/test_infra_relay.py`
checks in the policy.
"""

from __future__ import annotations

import json
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import boto3
import pytest

from control_plane.access.relay_record import KEY, RelayRecord, decode_relay, encode_relay
from control_plane.access.tunnel_relay import TunnelRelay
from control_plane.aws.relay_tasks import CONTAINER, FargateTasks, RelayPlace
from control_plane.aws.state_table import DynamoDbTable, table_definition
from control_plane.state.table import Expect, Put
from control_plane.usecases.relay_demand import RelayOnDemand
from detcloud.shared.tunnel.keys import SecureChannel
from detcloud.shared.tunnel.relay_link import RelayLink, dial_relay
from detcloud.shared.tunnel.tickets import Side
from infra.aws import relay_policies
from infra.aws.names import Names
from infra.sources import copy_sources
from lambdas.aws import relay_boot
from tests.emulators import fargate as emulated
from tests.emulators.fargate import FargateHost
from tests.emulators.ministack import ACCOUNT, REGION, Ministack, ministack
from tests.patience import PROCESS_SECONDS_MAX, wait_until
from tests.unit.relay.tunnel_ends import EchoServer, Ends, receive_exactly

NAMES = Names("vision", ACCOUNT, REGION)
PLACE = RelayPlace("detcloud-vision-relay", "detcloud-vision-relay", ("subnet-1",), "sg-1")


@dataclass
class Region:
    """An emulated account with the parts of a stack that the relay needs."""

    aws: Ministack
    table: DynamoDbTable
    code_url: str
    folder: Path

    def source(self) -> RelayOnDemand:
        tasks = FargateTasks(self.aws.client("ecs"), PLACE, self._environment)
        return RelayOnDemand(self.table, tasks, lambda: time.time_ns() // 1_000_000)

    def _environment(self, record: str, revision: int) -> dict[str, str]:
        return {
            relay_boot.CODE: self.code_url,
            relay_boot.RECORD: record,
            relay_boot.REVISION: str(revision),
            "AWS_ENDPOINT_URL": self.aws.url,
        }

    def record(self) -> RelayRecord:
        row = self.table.get(KEY)
        assert row is not None
        return decode_relay(row.body)


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Region]:
    folder = tmp_path_factory.mktemp("relay")
    with ministack(folder, enforces_iam=True) as aws:
        definition = {**table_definition(NAMES.cluster)}
        aws.client("dynamodb").create_table(**definition)
        roles = _make_roles(aws)
        url = _put_code(aws, folder)
        variables = {relay_boot.TABLE: NAMES.cluster, "AWS_DEFAULT_REGION": REGION}
        aws.client("ecs").create_cluster(clusterName=PLACE.cluster)
        aws.client("ecs").register_task_definition(
            family=PLACE.definition,
            taskRoleArn=roles,
            containerDefinitions=[
                {
                    "name": CONTAINER,
                    "image": "python",
                    "command": list(relay_boot.COMMAND),
                    "environment": [
                        {"name": name, "value": value} for name, value in variables.items()
                    ],
                }
            ],
        )
        table = DynamoDbTable(aws.client("dynamodb"), NAMES.cluster)
        yield Region(aws, table, url, folder)


def _make_roles(aws: Ministack) -> str:
    """Create the task's role with the stack's policy, and return the ARN."""
    iam, name = aws.client("iam"), NAMES.role(relay_policies.TASK_ROLE)
    trust = json.dumps(relay_policies.trust(NAMES))
    made = iam.create_role(RoleName=name, AssumeRolePolicyDocument=trust)
    document = json.dumps(relay_policies.task(NAMES))
    iam.put_role_policy(RoleName=name, PolicyName=name, PolicyDocument=document)
    return str(made["Role"]["Arn"])


def _put_code(aws: Ministack, folder: Path) -> str:
    """Store the sources of functions as an archive in a bucket, and return a signed URL."""
    content = folder / "content"
    content.mkdir()
    copy_sources(content)
    archive = folder / "functions.zip"
    with zipfile.ZipFile(archive, "w") as written:
        for path in sorted(content.rglob("*.py")):
            written.write(path, str(path.relative_to(content)))
    s3 = aws.client("s3")
    s3.create_bucket(Bucket=NAMES.objects)
    s3.put_object(Bucket=NAMES.objects, Key=relay_boot.CODE_KEY, Body=archive.read_bytes())
    place = {"Bucket": NAMES.objects, "Key": relay_boot.CODE_KEY}
    return str(s3.generate_presigned_url("get_object", place, 600))


@pytest.fixture
def tasks(region: Region, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FargateHost]:
    # The archive here has no packages, so the tasks run with the packages of the tests.
    monkeypatch.setattr(emulated, "_plain_python", lambda: sys.executable)
    with emulated.fargate(region.aws, PLACE.cluster, tmp_path / "tasks") as host:
        yield host


def find_relay(region: Region, tasks: FargateHost) -> TunnelRelay:
    """Return the relay as soon as the task has written its address."""
    source = region.source()
    found: list[TunnelRelay] = []

    def look() -> bool:
        relay = source.find_relay()
        found.extend([relay] if relay is not None else [])
        return bool(found)

    wait_until(look)
    return found[0]


class TaskEnds(Ends):
    """Both ends of a tunnel, with tickets of the relay that runs at the moment."""

    def __init__(self, region: Region, tasks: FargateHost, port: int) -> None:
        super().__init__(lambda: "", port)
        self._find = partial(find_relay, region, tasks)

    def _dial(self, side: Side, channel: SecureChannel) -> RelayLink:
        relay = self._find()
        now_ms = time.time_ns() // 1_000_000
        ticket = relay.issue_ticket(side, "tunnel-1", "ann", "3.1", [80], now_ms)
        return dial_relay(relay.url, relay.pin, ticket, channel)

    def dial_user(self) -> RelayLink:
        peer = self.keys.agent.certificate
        return self._dial(Side.USER, SecureChannel(self.keys.user, peer, is_agent=False))

    def dial_agent(self) -> RelayLink:
        peer = self.keys.user.certificate
        return self._dial(Side.AGENT, SecureChannel(self.keys.agent, peer, is_agent=True))


def test_session_survives_the_end_of_the_task(region: Region, tasks: FargateHost) -> None:
    echo = EchoServer()
    try:
        with TaskEnds(region, tasks, echo.port) as ends, ends.connect() as program:
            program.sendall(b"first")
            assert receive_exactly(program, 5) == b"first", tasks.log()
            [task] = tasks.living()
            # ECS ends a task by SIGTERM.
            task.terminate()
            program.sendall(b"second")
            assert receive_exactly(program, 6) == b"second", tasks.log()
            task.wait(PROCESS_SECONDS_MAX)
            assert task.returncode == 0
            # The ended task may still have carried the second answer.
            program.sendall(b"third")
            assert receive_exactly(program, 5) == b"third", tasks.log()
            assert len(tasks.living()) == 1
    finally:
        echo.close()
    assert "Traceback" not in tasks.log()


# The loser waits half a minute for the API to name the task.
@pytest.mark.nightly
def test_task_that_loses_the_race_for_the_row_ends(region: Region, tasks: FargateHost) -> None:
    find_relay(region, tasks)
    winner, *_ = tasks.living()
    row = region.table.get(KEY)
    assert row is not None
    record = region.record()
    # A task of an older attempt, as after a lost answer of ECS.
    request = FargateTasks(region.aws.client("ecs"), PLACE, region._environment)
    request.start(record, row.revision - 1_000)
    wait_until(lambda: len(tasks.processes) == 2)
    *_, loser = tasks.processes.values()
    loser.wait(PROCESS_SECONDS_MAX)
    assert loser.returncode == 1
    assert "another attempt has replaced the row" in tasks.log()
    assert winner.poll() is None
    assert region.record().pin == record.pin


def test_role_may_neither_read_nor_delete(region: Region) -> None:
    put = Put(KEY, 1, encode_relay(RelayRecord("a", "c2VjcmV0", 1)), Expect.ANYTHING)
    region.table.commit((put,))
    role = NAMES.role_arn(relay_policies.TASK_ROLE)
    keys = emulated.assume_task_role(region.aws, role)
    dynamodb = boto3.client(
        "dynamodb",
        endpoint_url=region.aws.url,
        region_name=REGION,
        aws_access_key_id=keys["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=keys["AWS_SECRET_ACCESS_KEY"],
        aws_session_token=keys["AWS_SESSION_TOKEN"],
    )
    key = {"p": {"S": KEY.partition}, "s": {"S": KEY.sort}}
    for call in (dynamodb.get_item, dynamodb.delete_item):
        with pytest.raises(dynamodb.exceptions.ClientError, match="AccessDenied"):
            call(TableName=NAMES.cluster, Key=key)
    dynamodb.put_item(TableName=NAMES.cluster, Item={**key, "r": {"N": "2"}})
