"""A deployed cluster: a team's stack, created on the emulator and used as by people.

Every test of this folder runs with the emulator's IAM enabled. IAM checks the signature of each
call to the table, the buckets, the queues and the token service. IAM also checks the caller's
permission for the action on the resource: for functions by their roles, for instances, and for
trials by their keys and the session's policy. Conditions on leading keys and on tags are not
checked. EC2 is our simulator, which trusts every caller. Bucket policies that require TLS are
removed, since no client of the emulator uses TLS.
"""

import json
import re
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.emulators.deployment import Deployment
from tests.emulators.ec2.machine import Machine
from tests.end_to_end.aws.cluster import send_warning
from tests.end_to_end.cluster_steps import (
    KEEP_ALL,
    LONG,
    SHORT,
    check_replacement,
    checkpoints,
    create,
    first_checkpoint,
    run_suggested_search,
    running,
    status_of,
    wait_for,
    wait_until,
)
from tests.end_to_end.laptop import Laptop

# EC2's time between the warning and the end of a spot instance.
NOTICE_SECONDS = 120


@pytest.mark.nightly
def test_trial_runs_from_create_to_an_empty_pool(
    deployment: Deployment, person: Laptop, tmp_path: Path
) -> None:
    # A zone has no capacity, and the stream delivers late and twice.
    deployment.account.ec2.region.capacity["g5.xlarge", "us-east-1a", "spot"] = 0
    for mapping in deployment.pump.mappings.values():
        mapping.lag_seconds, mapping.repeats = 2.0, 1
    experiment = create(person, SHORT, tmp_path)
    (machine,) = running(deployment)
    assert machine.zone == "us-east-1b"
    trial = wait_for(deployment, person, experiment)
    assert trial["best_metric"] > 0.8
    assert trial["restarts"] == 0
    assert checkpoints(deployment, trial["id"])
    assert "validation at batch" in person.run("trial", "logs", trial["id"]).stdout
    assert not any(mapping.lost for mapping in deployment.pump.mappings.values())
    # The bucket keeps the agent code of earlier deployments.
    kept = deployment.aws.client("s3").list_objects_v2(
        Bucket=deployment.outputs["objects"], Prefix="agent-code/"
    )
    # The packages in the code, and so the digest, are those of the function.
    (content,) = kept["Contents"]
    assert re.fullmatch(r"agent-code/[0-9a-f]{64}", content["Key"])
    commands = (deployment.account.machines.disk(machine.id) / "commands.log").read_text()
    # The watchdog and the firewall start before all other commands.
    order = [commands.index(f"--now detcloud-{name}") for name in ("watchdog", "firewall", "agent")]
    assert order == sorted(order)


# The self-test of a deployed cluster, in test_aws_verify.py, has the same course in the gate.
@pytest.mark.nightly
def test_spot_notice_ends_in_a_checkpoint_and_a_replacement(
    deployment: Deployment, person: Laptop, tmp_path: Path
) -> None:
    region = deployment.account.ec2.region
    before = len(region.machines)
    # Three epochs of 7 s each: the notice is heard in the middle of the second.
    experiment = create(person, 3, tmp_path, batch_seconds=0.3, settings=(KEEP_ALL,))
    (machine,) = running(deployment)
    trial = first_checkpoint(deployment, experiment)
    time.sleep(1.0)
    region.interrupt(machine.id, notice_ms=NOTICE_SECONDS * 1000)
    noticed = time.monotonic()
    send_warning(deployment, "EC2 Spot Instance Interruption Warning", machine, "terminate")
    wait_until(lambda: len(region.machines) > before + 1, 30, "a replacement")
    assert time.monotonic() - noticed < NOTICE_SECONDS, "the replacement comes before the end"
    described = wait_for(deployment, person, experiment)
    check_replacement(deployment, trial, described)


@pytest.mark.nightly
def test_model_suggests_the_points_of_a_search(
    deployment: Deployment, person: Laptop, tmp_path: Path
) -> None:
    experiment = run_suggested_search(deployment, person, tmp_path)
    assert ("suggestions", str(experiment)) not in deployment.rows()


@pytest.mark.nightly
def test_instance_with_a_rebalance_advice_finishes_old_work_and_gets_no_more(
    deployment: Deployment, person: Laptop, tmp_path: Path
) -> None:
    region = deployment.account.ec2.region
    before = set(region.machines)
    first = create(person, LONG, tmp_path)
    (advised,) = running(deployment)
    first_checkpoint(deployment, first)
    region.advise(advised.id)
    wait_until(lambda: is_drained(deployment, advised), 30, "a drained agent")
    # The new job gets a second instance, for which EC2's own event has the advice.
    second = create(person, 2 * LONG, tmp_path)
    wait_until(lambda: len(region.machines) > len(before) + 1, 60, "another instance")
    (other,) = (
        region.machines[machine] for machine in set(region.machines) - before - {advised.id}
    )
    first_checkpoint(deployment, second)
    send_warning(deployment, "EC2 Instance Rebalance Recommendation", other)
    wait_until(lambda: is_drained(deployment, other), 30, "a drained agent")
    for experiment in (first, second):
        described = wait_for(deployment, person, experiment)
        assert (described["restarts"], described["losses"]) == (0, 0)
    # Advice neither stops a trial nor launches an instance.
    assert set(region.machines) - before == {advised.id, other.id}


def is_drained(deployment: Deployment, machine: Machine) -> bool:
    """Return whether the machine's agent is draining: finishing old work without new work."""
    with deployment.client() as client:
        return client.agent(machine.id).draining


@pytest.mark.nightly
def test_deleted_experiment_leaves_no_objects_in_the_buckets(
    deployment: Deployment, person: Laptop, tmp_path: Path
) -> None:
    experiment = create(person, SHORT, tmp_path)
    trial = wait_for(deployment, person, experiment)["id"]
    store = deployment.aws.client("s3")

    def remaining_keys() -> list[str]:
        found = []
        for bucket, below in (("checkpoints", f"{experiment}/"), ("objects", f"logs/{trial}/")):
            listed = store.list_objects_v2(Bucket=deployment.outputs[bucket], Prefix=below)
            found += [content["Key"] for content in listed.get("Contents", ())]
            # The bucket of checkpoints keeps versions, which the collector deletes for good.
            listed = store.list_object_versions(Bucket=deployment.outputs[bucket], Prefix=below)
            found += [item["Key"] for item in listed.get("Versions", ())]
            found += [item["Key"] for item in listed.get("DeleteMarkers", ())]
        return found

    assert remaining_keys()
    person.run("experiment", "delete", experiment, "--yes")
    wait_until(lambda: not remaining_keys(), 60, f"the end of {remaining_keys()}")
    with deployment.client() as client:
        wait_until(
            lambda: status_of(lambda: client.experiment(experiment)) == 404, 30, "its deletion"
        )


def test_functions_are_within_the_quotas(
    deployment: Deployment, archives: Mapping[str, Path]
) -> None:
    for archive in set(archives.values()):
        with zipfile.ZipFile(archive) as opened:
            names = {info.filename.partition("/")[0] for info in opened.infolist()}
            unpacked = sum(info.file_size for info in opened.infolist())
        # AWS's limits for a direct upload, the unpacked size and a function's environment.
        assert archive.stat().st_size <= 50_000_000
        assert unpacked <= 250_000_000
        # The archive has only the parts of the SDK that functions use, in the tested version.
        assert not names & {"torch", "boto3"}
        assert "botocore" in names
        assert ("numpy" in names) == (archive.name.startswith("suggest"))
    for function in deployment.aws.client("lambda").list_functions()["Functions"]:
        assert len(json.dumps(function["Environment"]["Variables"])) <= 4096
