"""A cluster on Google Cloud with failing machines, zones, database, events and API."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from control_plane.agents.leases import LEASE_MS
from control_plane.fleet.rows import read_past_instances
from control_plane.gcp.row_documents import document_path
from control_plane.state.table import Expect, Key, Put
from lambdas.clock import now_ms
from tests.end_to_end.cluster_steps import (
    DONE_SECONDS_MAX,
    IMPATIENT,
    KEEP_ALL,
    LONGEST,
    POOL,
    SHORT,
    checkpoints,
    failed_boot,
    first_checkpoint,
    forget_passes,
    lease_of,
    running,
    ticks_stopped,
    validation_steps,
    wait_for,
    wait_until,
)
from tests.end_to_end.gcp.cluster import FULL_ZONE, TYPE, create
from tests.end_to_end.laptop import Laptop

if TYPE_CHECKING:
    from tests.emulators.deployment_gcp import GcpDeployment

pytestmark = pytest.mark.nightly


def test_gcp_machines_that_fail_to_boot_report_the_cause_and_are_replaced(
    deployment: GcpDeployment, person: Laptop, tmp_path: Path
) -> None:
    project, machines = deployment.project, deployment.machines
    # The silent machine has 15 s. The broken machine has 20 minutes and reports the failure at
    # once.
    project.sleepers = 1
    experiments = [create(deployment, person, SHORT, tmp_path, IMPATIENT)]
    (sleeper,) = running(deployment)
    assert not sleeper.boots
    machines.failing_commands = {POOL: "usermod"}
    experiments.append(create(deployment, person, SHORT, tmp_path, POOL))
    for experiment in experiments:
        described = wait_for(deployment, person, experiment)
        assert (described["restarts"], described["losses"]) == (0, 0)
    boot = failed_boot(person, "usermod")
    # Both the silent machine and the machine that shut itself down were deleted.
    ended = {sleeper.name, boot["id"]}
    wait_until(lambda: all(project.machines[item].deleted for item in ended), 60, "their end")
    with deployment.client() as client:
        assert not ended & {agent.id for agent in client.agents()}


def test_machine_is_launched_in_a_second_zone_after_a_zone_reports_exhaustion(
    deployment: GcpDeployment, person: Laptop, tmp_path: Path
) -> None:
    project = deployment.project
    before = set(project.machines)
    project.late = True
    project.capacity[TYPE, FULL_ZONE, "spot"] = 0
    described = wait_for(deployment, person, create(deployment, person, SHORT, tmp_path))
    assert (described["restarts"], described["losses"]) == (0, 0)
    (machine,) = set(project.machines) - before
    assert project.machines[machine].zone != FULL_ZONE
    codes = [error["code"] for operation in project.operations for error in operation.errors]
    assert "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS" in codes


def test_database_faults_delay_work_without_repeating_a_trial(
    deployment: GcpDeployment, person: Laptop, tmp_path: Path
) -> None:
    before, faults = set(deployment.project.machines), deployment.events.faults
    faults.refused_of, faults.lost_of = 5, 9
    experiment = create(deployment, person, SHORT, tmp_path)
    described = wait_for(deployment, person, experiment)
    wait_until(lambda: not deployment.billed_instances(), 90, "no instance without work")
    # Reads and commits met both faults.
    for method in ("runQuery", "commit"):
        assert faults.refused[method], method
    assert faults.lost["commit"]
    launched = set(deployment.project.machines) - before
    assert len(launched) == 1, describe_launches(deployment)
    assert (described["restarts"], described["losses"]) == (0, 0)
    assert validation_steps(deployment, described["id"]) == [44]


def test_gcp_api_outage_of_a_minute_stops_no_training_and_loses_no_report(
    deployment: GcpDeployment, person: Laptop, tmp_path: Path
) -> None:
    experiment = create(deployment, person, LONGEST, tmp_path, settings=(KEEP_ALL,))
    (machine,) = running(deployment)
    launched = len(deployment.project.machines)
    trial = first_checkpoint(deployment, experiment)
    # A single tick during the outage, however slow the machine is.
    with ticks_stopped(deployment):
        deployment.functions.stop("api")
        down_until = time.monotonic() + 60.0
        try:
            # The trial trains to the end, and then waits with its reports.
            assert len(checkpoints(deployment, trial)) <= LONGEST
            wait_until(
                lambda: len(checkpoints(deployment, trial)) > LONGEST,
                DONE_SECONDS_MAX,
                "training without API",
            )
            wait_until(lambda: time.monotonic() > down_until, 60, "the end of a minute")
            # The agent's lease has expired, without a loss.
            assert lease_of(deployment, machine.name).renewed_ms < now_ms() - LEASE_MS
            forget_passes(deployment)
            deployment.tick()
        finally:
            deployment.functions.start("api")
        # The agent retries at least every 15 s, and so succeeds before the next minute's tick.
        up_ms = now_ms()
        wait_until(
            lambda: lease_of(deployment, machine.name).renewed_ms > up_ms, 60, "the agent's call"
        )
    described = wait_for(deployment, person, experiment)
    assert (described["restarts"], described["losses"]) == (0, 0)
    assert len(deployment.project.machines) == launched
    # 40 epochs of 1,437 records in batches of 64.
    assert validation_steps(deployment, trial) == [898]


def test_unreadable_actor_is_retried_without_delaying_others(
    deployment: GcpDeployment, person: Laptop, tmp_path: Path
) -> None:
    trigger = deployment.events.triggers["advance"]
    refused = trigger.refused
    head, message = (Key("trial#999999", name) for name in ("M", "M#0000000000000001#nobody"))
    for key in (head, message):
        deployment.table.commit((Put(key, 1, b"no actor's", Expect.ANYTHING),))
    described = wait_for(deployment, person, create(deployment, person, SHORT, tmp_path))
    assert (described["restarts"], described["losses"]) == (0, 0)
    assert trigger.refused > refused
    # Eventarc abandons an event after a day, the emulator sooner.
    path = document_path(message)
    wait_until(lambda: path in trigger.lost, 120, "an event that is given up")


def describe_launches(deployment: GcpDeployment) -> str:
    """Return the ticks' decisions about instances, and the past instances."""
    decided = [
        str(line["message"])
        for line in deployment.log_lines("tick")
        if str(line["message"]).startswith("pool ")
    ]
    past, _ = read_past_instances(deployment.table, POOL)
    return "\n".join([*decided, *map(str, past)])
