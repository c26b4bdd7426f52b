"""A deployed cluster: the stack of a team, materialised on the emulator, is used as people do, and
then its instances, its stream and its API fail.
"""

import json
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.bundle import TARGETS, build
from tests.conftest import require
from tests.emulators.deployment import POOL, Deployment, deployment, wait_until
from tests.emulators.ec2.machine import Machine
from tests.emulators.ministack import Ministack
from tests.end_to_end.laptop import DIGITS, Laptop

DONE_SECONDS_MAX = 150.0
SHORT, LONG = 2, 12  # epochs


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The functions, as they are deployed here."""
    return build(TARGETS["emulator"], tmp_path_factory.mktemp("functions"))


@pytest.fixture(scope="module")
def deployed(
    aws: Ministack, archive: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    require("torch")
    require("sklearn")
    with deployment(aws, archive, tmp_path_factory.mktemp("vision")) as running:
        wait_until(lambda: ("pools", POOL) in running.rows(), 60, "the configuration in force")
        yield running


@pytest.fixture
def person(deployed: Deployment, tmp_path: Path) -> Laptop:
    """Somebody with the `detcloud` command and the administrator's token."""
    variables = {"DETCLOUD_URL": deployed.url, "DETCLOUD_TOKEN": deployed.token}
    return Laptop(tmp_path / "home", **variables)


@pytest.fixture(autouse=True)
def as_before(deployed: Deployment) -> Iterator[None]:
    """Each test leaves a cluster without instances, in a cloud without faults."""
    yield
    deployed.ec2.region.capacity.clear()
    for mapping in deployed.pump.mappings.values():
        mapping.lag_seconds, mapping.repeats = 0.0, 0
    wait_until(lambda: not deployed.living(), 90, "no instance without work")


def create(person: Laptop, epochs: int, folder: Path) -> int:
    """One digits trial of so many epochs; its experiment."""
    config = folder / "digits.yaml"
    text = (DIGITS / "const.yaml").read_text()
    config.write_text(
        text.replace("epochs: 15", f"epochs: {epochs}\nmin_checkpoint_period: {{epochs: 1}}")
    )
    created: int = person.json("create", config, DIGITS)["id"]
    return created


def state(person: Laptop, experiment: int) -> str:
    return str(person.json("experiment", "describe", experiment)["state"])


def wait_for(deployed: Deployment, person: Laptop, experiment: int) -> dict[str, Any]:
    """The experiment's one trial, once it is completed."""

    def is_over() -> bool:
        return state(person, experiment) not in ("ACTIVE", "PAUSED")

    try:
        wait_until(is_over, DONE_SECONDS_MAX, f"experiment {experiment}")
        assert state(person, experiment) == "COMPLETED"
    except AssertionError as error:
        logs = "\n".join(deployed.machines.log(name) for name in deployed.ec2.region.machines)
        raise AssertionError(f"{error}\n{deployed.failures[-3:]}\n{logs[-6000:]}") from error
    (trial,) = person.json("experiment", "list-trials", experiment)
    described: dict[str, Any] = person.json("trial", "describe", trial["id"])
    return described


def running(deployed: Deployment, count: int = 1) -> list[Machine]:
    """The instances, once there are so many."""
    wait_until(lambda: len(deployed.living()) >= count, 60, f"{count} instances")
    return deployed.living()


def checkpoints(deployed: Deployment, trial: int) -> list[str]:
    """Whole checkpoints of the trial in the bucket."""
    found = deployed.aws.client("s3").list_objects_v2(Bucket=deployed.outputs["checkpoints"])
    keys = [it["Key"] for it in found.get("Contents", ())]
    return [key for key in keys if f"/{trial}/" in key and key.endswith("manifest.json")]


def test_a_trial_runs_from_create_to_an_empty_pool(
    deployed: Deployment, person: Laptop, tmp_path: Path
) -> None:
    # One zone has no room, and what the stream brings comes late and twice.
    deployed.ec2.region.capacity["g5.xlarge", "us-east-1a", "spot"] = 0
    for mapping in deployed.pump.mappings.values():
        mapping.lag_seconds, mapping.repeats = 2.0, 1
    experiment = create(person, SHORT, tmp_path)
    (machine,) = running(deployed)
    assert machine.zone == "us-east-1b"
    trial = wait_for(deployed, person, experiment)
    assert trial["best_metric"] > 0.8
    assert trial["restarts"] == 0
    assert checkpoints(deployed, trial["id"])
    assert "validation at batch" in person.run("trial", "logs", trial["id"]).stdout
    assert not any(mapping.lost for mapping in deployed.pump.mappings.values())
    commands = (deployed.machines.disk(machine.id) / "commands.log").read_text()
    # The machine would end itself, and its credentials are closed, before anything else runs.
    order = [commands.index(f"--now detcloud-{it}") for it in ("watchdog", "firewall", "agent")]
    assert order == sorted(order)


def test_a_spot_notice_ends_in_a_checkpoint_and_a_replacement(
    deployed: Deployment, person: Laptop, tmp_path: Path
) -> None:
    machines = deployed.ec2.region.machines
    before = len(machines)
    experiment = create(person, LONG, tmp_path)
    (machine,) = running(deployed)
    trial = person.json("experiment", "list-trials", experiment)[0]["id"]
    wait_until(lambda: len(checkpoints(deployed, trial)) > 0, 60, "a first checkpoint")
    deployed.ec2.region.interrupt(machine.id, notice_ms=30_000)
    noticed = time.monotonic()
    # EC2's own event says so too; neither witness needs the other.
    event = {
        "detail-type": "EC2 Spot Instance Interruption Warning",
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "detail": {"instance-id": machine.id, "instance-action": "terminate"},
    }
    deployed.invoke("spot_notice", event)
    wait_until(lambda: len(machines) > before + 1, 30, "a replacement")
    assert time.monotonic() - noticed < 30, "the replacement was to come before the end"
    described = wait_for(deployed, person, experiment)
    assert described["restarts"] == 0
    assert described["steps_completed"] == described["target_steps"]


def test_an_api_that_is_down_for_a_while_stops_no_training(
    deployed: Deployment, person: Laptop, tmp_path: Path
) -> None:
    experiment = create(person, LONG, tmp_path)
    running(deployed)
    trial = person.json("experiment", "list-trials", experiment)[0]["id"]
    wait_until(lambda: len(checkpoints(deployed, trial)) > 0, 60, "a first checkpoint")
    client = deployed.aws.client("lambda")
    name = deployed.function("api")
    client.put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=0)
    before = len(checkpoints(deployed, trial))
    try:
        wait_until(lambda: len(checkpoints(deployed, trial)) > before, 30, "training without API")
    finally:
        client.delete_function_concurrency(FunctionName=name)
    described = wait_for(deployed, person, experiment)
    assert described["restarts"] == 0


def test_an_actor_that_cannot_be_read_goes_to_the_dead_letters_and_holds_up_nobody(
    deployed: Deployment, person: Laptop, tmp_path: Path
) -> None:
    table = deployed.aws.client("dynamodb")
    for sort in ("M", "M#0000000000000001#nobody"):
        row: dict[str, Any] = {"p": {"S": "trial#999999"}, "s": {"S": sort}, "r": {"N": "1"}}
        row["b"] = {"B": b"no actor's"}
        table.put_item(TableName=deployed.outputs["table"], Item=row)
    wait_for(deployed, person, create(person, SHORT, tmp_path))
    queue, sqs = deployed.outputs["deadLetters"], deployed.aws.client("sqs")

    def has_letter() -> bool:
        found = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
        return int(found["ApproximateNumberOfMessages"]) > 0

    wait_until(has_letter, 60, "a dead letter")


def test_the_functions_keep_to_the_quotas(deployed: Deployment, archive: Path) -> None:
    with zipfile.ZipFile(archive) as opened:
        names = {info.filename.partition("/")[0] for info in opened.infolist()}
        unpacked = sum(info.file_size for info in opened.infolist())
    # What AWS takes at once, unpacked, and as the environment of a function.
    assert archive.stat().st_size <= 50_000_000
    assert unpacked <= 250_000_000
    assert not names & {"torch", "boto3", "botocore", "numpy"}
    for function in deployed.aws.client("lambda").list_functions()["Functions"]:
        assert len(json.dumps(function["Environment"]["Variables"])) <= 4096


@pytest.mark.parametrize("authorization", [None, "Bearer dct_of-the-administrator-of-speech"])
def test_another_teams_token_is_none_here(deployed: Deployment, authorization: str | None) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    request = urllib.request.Request(f"{deployed.url}/api/v1/experiments", headers=headers)
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(request, timeout=30)
    assert raised.value.code == 401
    assert json.loads(raised.value.read())["error"]["code"] == "unauthenticated"
    raised.value.close()
