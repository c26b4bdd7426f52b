"""Steps that tests and users take with a deployed cluster, and waits for their results."""

import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from control_plane.actors.agent.actor import leases_partition
from control_plane.agents.leases import BRAKE_SORT, Lease, read_leases
from control_plane.aws.state_table import DynamoDbTable
from control_plane.fleet.records import instances_partition
from control_plane.state.table import Delete, Key
from detcloud.agent.aws.instance_identity import sign_identity
from detcloud.agent.aws.metadata import Ec2Metadata
from detcloud.agent.join_token import IdentityProof, obtain_join_token
from detcloud.shared.http import ApiError
from tests.emulators.deployment import Deployment, Stack, wait_until
from tests.emulators.ec2.machine import Machine
from tests.end_to_end.laptop import DIGITS, Laptop
from tests.end_to_end.slow_digits import copy_slow_digits

DONE_SECONDS_MAX = 150.0
SHORT, LONG, LONGEST = 2, 12, 40  # epochs
EPOCH_BATCHES = 22

# Instances are processes of this machine, which may have no GPU.
# The second pool believes in an instance for seconds only; agents of the third are started by hand.
POOL, IMPATIENT, DESK = "gpus", "impatient", "desk"
_OFFERINGS = """[
        {instance_type: g5.xlarge, zone: us-east-1a, market: spot, slots: 1},
        {instance_type: g5.xlarge, zone: us-east-1b, market: spot, slots: 1}]"""
POOLS = f"""
resource_manager:
  default_compute_resource_pool: {POOL}
  default_aux_resource_pool: {POOL}
resource_pools:
  - pool_name: {POOL}
    provider:
      type: aws
      cpu_slots_allowed: true
      max_instances: 2
      max_idle_agent_period: 5s
      offerings: {_OFFERINGS}
  - pool_name: {IMPATIENT}
    provider:
      type: aws
      cpu_slots_allowed: true
      max_instances: 2
      max_idle_agent_period: 5s
      max_agent_starting_period: 15s
      offerings: {_OFFERINGS}
  - pool_name: {DESK}
"""


def create(
    person: Laptop, epochs: int, folder: Path, pool: str = POOL, batch_seconds: float = 0.0
) -> int:
    """One digits trial of so many epochs, whose batches take so much longer; its experiment."""
    config = folder / f"digits-{epochs}.yaml"
    text = (DIGITS / "const.yaml").read_text()
    config.write_text(
        text.replace("epochs: 15", f"epochs: {epochs}\nmin_checkpoint_period: {{epochs: 1}}")
    )
    where = ("--config", f"resources.resource_pool={pool}")
    code = copy_slow_digits(folder, batch_seconds) if batch_seconds else DIGITS
    created: int = person.json("create", config, code, *where)["id"]
    return created


def trial_of(deployed: Deployment, experiment: int) -> int:
    """The experiment's only one."""
    with deployed.client() as client:
        (trial,) = client.experiment(experiment).trials()
        return trial.id


def validation_steps(deployed: Deployment, trial: int) -> list[int]:
    """After how many batches it reported a validation."""
    with deployed.client() as client:
        reports = client.trial(trial).metrics("validation")
        return [report["steps_completed"] for report in reports]


def wait_for(deployed: Deployment, person: Laptop, experiment: int) -> dict[str, Any]:
    """The experiment's one trial, once it is completed."""
    with deployed.client() as client:
        asked = client.experiment(experiment)

        def is_over() -> bool:
            asked.refresh()
            return asked.state not in ("ACTIVE", "PAUSED")

        try:
            wait_until(is_over, DONE_SECONDS_MAX, f"experiment {experiment}")
            assert asked.state == "COMPLETED"
        except AssertionError as error:
            machines = deployed.account.machines
            logs = "\n".join(map(machines.log, deployed.account.ec2.region.machines))
            raise AssertionError(f"{error}\n{deployed.failures[-3:]}\n{logs[-6000:]}") from error
    trial = trial_of(deployed, experiment)
    described: dict[str, Any] = person.json("trial", "describe", trial)
    return described


def running(deployed: Deployment, count: int = 1) -> list[Machine]:
    """The instances, once there are so many."""
    wait_until(lambda: len(deployed.billed_instances()) >= count, 60, f"{count} instances")
    return deployed.billed_instances()


def first_checkpoint(deployed: Deployment, experiment: int) -> int:
    """The experiment's trial, once it has stored one."""
    trial = trial_of(deployed, experiment)
    wait_until(lambda: len(checkpoints(deployed, trial)) > 0, 60, "a first checkpoint")
    return trial


def checkpoints(deployed: Deployment, trial: int) -> list[str]:
    """Whole checkpoints of the trial in the bucket."""
    found = deployed.aws.client("s3").list_objects_v2(Bucket=deployed.outputs["checkpoints"])
    keys = [it["Key"] for it in found.get("Contents", ())]
    # EXPERIMENT/TRIAL/EPOCH/UUID
    return [
        key for key in keys if key.split("/")[1] == str(trial) and key.endswith("manifest.json")
    ]


def steps_kept(deployed: Deployment, trial: int, epoch: int) -> list[int]:
    """The batches that the checkpoints of the trial's allocation hold."""
    store, bucket = deployed.aws.client("s3"), deployed.outputs["checkpoints"]
    ours = [key for key in checkpoints(deployed, trial) if key.split("/")[2] == str(epoch)]
    manifests = [json.load(store.get_object(Bucket=bucket, Key=key)["Body"]) for key in ours]
    return sorted(manifest["metadata"]["steps_completed"] for manifest in manifests)


def end(team: Stack, machine: Machine) -> None:
    """EC2 takes a machine of the first pool away, and its cluster knows it."""
    team.account.ec2.region.interrupt(machine.id, notice_ms=0)
    row = (instances_partition(POOL), machine.id)
    wait_until(lambda: row not in team.rows(), 30, f"the end of {machine.id}")


def send_warning(team: Stack, kind: str, machine: Machine, action: str = "") -> None:
    """EC2 says of a machine what its metadata says, too; neither witness needs the other.

    Nobody but AWS may send its events, so the rule is asked, and its target called.
    """
    event = {
        "id": "1",
        "source": "aws.ec2",
        "account": "123456789012",
        "region": "us-east-1",
        "resources": [],
        "detail-type": kind,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "detail": {"instance-id": machine.id, **({"instance-action": action} if action else {})},
    }
    events, rule = team.aws.client("events"), f"detcloud-{team.team}-warnings"
    pattern = events.describe_rule(Name=rule)["EventPattern"]
    assert events.test_event_pattern(EventPattern=pattern, Event=json.dumps(event))["Result"]
    [target] = events.list_targets_by_rule(Rule=rule)["Targets"]
    assert target["Arn"].endswith(f":{team.function_name('spot_notice')}:live")
    team.invoke("spot_notice", event)


def prove(to: Stack, machine: Machine, kept: Path) -> str:
    """The join token in a file, proved by the keys in the machine's metadata. Raises
    IdentityRefused.
    """
    metadata = Ec2Metadata(to.account.ec2.metadata_url(machine.id))

    def make_proof(digest: str) -> IdentityProof:
        return sign_identity(to.outputs["cluster"], digest, metadata)

    return obtain_join_token(kept, to.url, POOL, make_proof, lambda line: None)


def status_of(call: Callable[[], object]) -> int:
    """Return the HTTP status of a call; 200 where it succeeds."""
    try:
        call()
    except ApiError as error:
        return error.status
    return 200


def lease_of(deployed: Deployment, machine: Machine) -> Lease:
    """The lease of the agent of a machine of the first pool."""
    table = DynamoDbTable(deployed.aws.client("dynamodb"), deployed.outputs["table"])
    return read_leases(table, POOL)[machine.id]


@contextmanager
def minutes_stopped(deployed: Deployment) -> Iterator[None]:
    """No tick comes by itself, neither ours nor that of the emulator's rule."""
    events, rule = deployed.aws.client("events"), f"detcloud-{deployed.team}-minute"
    ticked_each_seconds, deployed.tick_seconds = deployed.tick_seconds, math.inf
    events.disable_rule(Name=rule)
    try:
        yield
    finally:
        events.enable_rule(Name=rule)
        deployed.tick_seconds = ticked_each_seconds


def forget_passes(deployed: Deployment) -> None:
    """Forget the passes over the leases of the first pool and their pause: what the next one does
    hangs neither on how long ago the last one was, nor on a pause that has just ended.
    """
    table = DynamoDbTable(deployed.aws.client("dynamodb"), deployed.outputs["table"])

    row = table.get(Key(leases_partition(POOL), BRAKE_SORT))
    if row is not None:
        table.commit((Delete(row.key, row.revision),))
