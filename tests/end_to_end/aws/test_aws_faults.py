"""A deployed cluster whose instances, stream, table and API fail."""

from pathlib import Path
from typing import Any

from tests.emulators.deployment import Deployment, wait_until
from tests.end_to_end.aws.cluster import (
    IMPATIENT,
    LONG,
    SHORT,
    checkpoints,
    create,
    first_checkpoint,
    let_ten_minutes_pass,
    running,
    validated,
    wait_for,
)
from tests.end_to_end.laptop import Laptop


def test_an_instance_that_never_boots_is_replaced_and_ends(
    deployed: Deployment, person: Laptop, tmp_path: Path
) -> None:
    region = deployed.account.ec2.region
    region.sleepers = 1
    experiment = create(person, SHORT, tmp_path, IMPATIENT)
    (sleeper,) = running(deployed)
    assert not sleeper.boots
    described = wait_for(deployed, person, experiment)
    assert (described["restarts"], described["losses"]) == (0, 0)
    # Its time to start is over, so another one did the work; it has ten minutes more to come back.
    assert sleeper in deployed.living()
    let_ten_minutes_pass(deployed, IMPATIENT, sleeper)
    wait_until(lambda: sleeper not in deployed.living(), 60, "its end")
    assert sleeper.reason is not None
    assert sleeper.reason[0] == "Client.UserInitiatedShutdown"
    with deployed.client() as client:
        assert sleeper.id not in [agent.id for agent in client.agents()]


def test_a_throttled_table_delays_everybody_and_nothing_runs_twice(
    deployed: Deployment, person: Laptop, tmp_path: Path
) -> None:
    region, table = deployed.account.ec2.region, deployed.account.tables
    before = len(region.machines)
    # What is refused passes with the next try, but a lost answer to a single write is an error.
    table.refused_of, table.lost_of = 5, 9
    experiment = create(person, SHORT, tmp_path)
    described = wait_for(deployed, person, experiment)
    wait_until(lambda: not deployed.living(), 90, "no instance without work")
    # Reads and transactions met both.
    for operation in ("Query", "TransactWriteItems"):
        assert table.refused[operation], operation
    assert table.lost.total()
    assert len(region.machines) == before + 1
    assert (described["restarts"], described["losses"]) == (0, 0)
    assert validated(deployed, described["id"]) == [44]


def test_an_api_that_is_down_for_a_while_stops_no_training(
    deployed: Deployment, person: Laptop, tmp_path: Path
) -> None:
    experiment = create(person, LONG, tmp_path)
    running(deployed)
    trial = first_checkpoint(deployed, experiment)
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
