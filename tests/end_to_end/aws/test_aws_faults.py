"""A deployed cluster with failing instances, stream, table and API."""

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
def test_instances_that_fail_to_boot_report_the_cause_and_are_replaced(
    deployment: Deployment, person: Laptop, tmp_path: Path
) -> None:
    region, machines = deployment.account.ec2.region, deployment.account.machines
    # The silent instance has 15 s. The broken instance has 20 minutes and reports the failure at
    # once.
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
def test_throttled_table_delays_work_without_repeating_a_trial(
    deployment: Deployment, person: Laptop, tmp_path: Path
) -> None:
    region, table = deployment.account.ec2.region, deployment.account.tables
    before = len(region.machines)
    # A refused write succeeds when retried, but a lost answer to a single write is an error.
    table.refused_of, table.lost_of = 5, 9
    experiment = create(person, SHORT, tmp_path)
    described = wait_for(deployment, person, experiment)
    wait_until(lambda: not deployment.billed_instances(), 90, "no instance without work")
    # Reads and transactions met both faults.
    for operation in ("Query", "TransactWriteItems"):
        assert table.refused[operation], operation
    assert table.lost.total()
    assert len(region.machines) == before + 1
    assert (described["restarts"], described["losses"]) == (0, 0)
    assert validation_steps(deployment, described["id"]) == [44]


@pytest.mark.nightly
def test_api_outage_of_a_minute_stops_no_training_and_loses_no_report(
    deployment: Deployment, person: Laptop, tmp_path: Path
) -> None:
    experiment = create(person, LONGEST, tmp_path, settings=(KEEP_ALL,))
    (machine,) = running(deployment)
    launched = len(deployment.account.ec2.region.machines)
    trial = first_checkpoint(deployment, experiment)
    client = deployment.aws.client("lambda")
    name = deployment.function_name("api")
    # A single tick during the outage, however slow the machine is.
    with minutes_stopped(deployment):
        # The emulator applies reserved concurrency only to the unpublished version of a function.
        version = client.get_alias(FunctionName=name, Name="live")["FunctionVersion"]
        client.update_alias(FunctionName=name, Name="live", FunctionVersion="$LATEST")
        client.put_function_concurrency(FunctionName=name, ReservedConcurrentExecutions=0)
        down_until = time.monotonic() + 60.0
        try:
            # The trial trains to the end, and then waits with its reports.
            assert len(checkpoints(deployment, trial)) <= LONGEST
            wait_until(
                lambda: len(checkpoints(deployment, trial)) > LONGEST, 50, "training without API"
            )
            # The gateway's answer for a function that may not run.
            assert status_of(deployment.client().agents) == 429
            wait_until(lambda: time.monotonic() > down_until, 60, "the end of a minute")
            # The agent's lease has expired, without a loss.
            assert lease_of(deployment, machine.id).renewed_ms < now_ms() - LEASE_MS
            forget_passes(deployment)
            deployment.invoke("tick", {})
        finally:
            client.delete_function_concurrency(FunctionName=name)
            client.update_alias(FunctionName=name, Name="live", FunctionVersion=version)
        # The agent retries at least every 15 s, and so succeeds before the next minute's tick.
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
def test_unreadable_actor_goes_to_the_dead_letters_without_delaying_others(
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
