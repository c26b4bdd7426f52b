"""A deployed cluster whose instances, stream, table and API fail."""

import time
from pathlib import Path
from typing import Any

import pytest

from control_plane.agents.leases import LEASE_MS
from lambdas.clock import now_ms
from tests.emulators.deployment import Deployment
from tests.end_to_end.aws.cluster import minutes_stopped
from tests.end_to_end.cluster_steps import (
    IMPATIENT,
    KEEP_ALL,
    LONGEST,
    POOL,
    SHORT,
    checkpoints,
    create,
    failed_boot,
    first_checkpoint,
    forget_passes,
    lease_of,
    running,
    status_of,
    validation_steps,
    wait_for,
    wait_until,
)
from tests.end_to_end.laptop import Laptop


@pytest.mark.nightly
def test_instances_that_fail_to_boot_say_why_and_are_replaced(
    deployment: Deployment, person: Laptop, tmp_path: Path
) -> None:
    region, machines = deployment.account.ec2.region, deployment.account.machines
    # The one that is silent has 15 s; the one that breaks has 20 minutes, and tells of it at once.
    region.sleepers = 1
    experiments = [create(person, SHORT, tmp_path, IMPATIENT)]
    (sleeper,) = running(deployment)
    assert not sleeper.boots
    machines.failing_commands = {POOL: "usermod"}
    experiments.append(create(person, SHORT, tmp_path, POOL))
    for experiment in experiments:
        described = wait_for(deployment, person, experiment)
        assert (described["restarts"], described["losses"]) == (0, 0)
    boot = failed_boot(person, "usermod")
    ended = {sleeper.id, boot["id"]}
    assert not ended & {billed_instance.id for billed_instance in deployment.billed_instances()}
    assert sleeper.reason is not None
    assert sleeper.reason[0] == "Client.UserInitiatedShutdown"
    with deployment.client() as client:
        assert not ended & {agent.id for agent in client.agents()}


@pytest.mark.nightly
def test_a_throttled_table_delays_everybody_and_nothing_runs_twice(
    deployment: Deployment, person: Laptop, tmp_path: Path
) -> None:
    region, table = deployment.account.ec2.region, deployment.account.tables
    before = len(region.machines)
    # What is refused passes with the next try, but a lost answer to a single write is an error.
    table.refused_of, table.lost_of = 5, 9
    experiment = create(person, SHORT, tmp_path)
    described = wait_for(deployment, person, experiment)
    wait_until(lambda: not deployment.billed_instances(), 90, "no instance without work")
    # Reads and transactions met both.
    for operation in ("Query", "TransactWriteItems"):
        assert table.refused[operation], operation
    assert table.lost.total()
    assert len(region.machines) == before + 1
    assert (described["restarts"], described["losses"]) == (0, 0)
    assert validation_steps(deployment, described["id"]) == [44]


@pytest.mark.nightly
def test_an_api_that_is_down_for_a_minute_stops_no_training_and_loses_no_report(
    deployment: Deployment, person: Laptop, tmp_path: Path
) -> None:
    experiment = create(person, LONGEST, tmp_path, settings=(KEEP_ALL,))
    (machine,) = running(deployment)
    launched = len(deployment.account.ec2.region.machines)
    trial = first_checkpoint(deployment, experiment)
    client = deployment.aws.client("lambda")
    name = deployment.function_name("api")
    # One tick comes in it, as in any minute, however long that is on a slow machine.
    with minutes_stopped(deployment):
        # The emulator applies what is reserved for a function to its unpublished version alone.
        version = client.get_alias(FunctionName=name, Name="live")["FunctionVersion"]
        client.update_alias(FunctionName=name, Name="live", FunctionVersion="$LATEST")
        client.put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=0)
        down_until = time.monotonic() + 60.0
        try:
            # Its work goes on to the end, and then it waits with what it has to say.
            assert len(checkpoints(deployment, trial)) <= LONGEST
            wait_until(
                lambda: len(checkpoints(deployment, trial)) > LONGEST, 50, "training without API"
            )
            # What the gateway says of a function that may not run.
            assert status_of(deployment.client().agents) == 429
            wait_until(lambda: time.monotonic() > down_until, 60, "the end of a minute")
            # The agent's lease has lapsed, for which nobody blames it.
            assert lease_of(deployment, machine.id).renewed_ms < now_ms() - LEASE_MS
            forget_passes(deployment)
            deployment.invoke("tick", {})
        finally:
            client.delete_function_concurrency(FunctionName=name)
            client.update_alias(FunctionName=name, Name="live", FunctionVersion=version)
        # It tries again each 15 s at least, so that it is heard of before the next minute's tick.
        up_ms = now_ms()
        wait_until(
            lambda: lease_of(deployment, machine.id).renewed_ms > up_ms, 60, "the agent's call"
        )
    described = wait_for(deployment, person, experiment)
    assert (described["restarts"], described["losses"]) == (0, 0)
    assert len(deployment.account.ec2.region.machines) == launched
    # 40 epochs of 1,437 records in batches of 64.
    assert validation_steps(deployment, trial) == [898]


@pytest.mark.nightly
def test_an_actor_that_cannot_be_read_goes_to_the_dead_letters_and_holds_up_nobody(
    deployment: Deployment, person: Laptop, tmp_path: Path
) -> None:
    table = deployment.aws.client("dynamodb")
    for sort in ("M", "M#0000000000000001#nobody"):
        row: dict[str, Any] = {"p": {"S": "trial#999999"}, "s": {"S": sort}, "r": {"N": "1"}}
        row["b"] = {"B": b"no actor's"}
        table.put_item(TableName=deployment.outputs["table"], Item=row)
    wait_for(deployment, person, create(person, SHORT, tmp_path))
    queue, sqs = deployment.outputs["deadLetters"], deployment.aws.client("sqs")

    def has_letter() -> bool:
        found = sqs.get_queue_attributes(QueueUrl=queue, AttributeNames=["All"])["Attributes"]
        return int(found["ApproximateNumberOfMessages"]) > 0

    wait_until(has_letter, 60, "a dead letter")
