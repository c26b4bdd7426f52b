"""Steps of tests and users on a deployed cluster in any cloud, and waits for the results.

Instances are processes of this machine, which may have no GPU.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

from control_plane.actors.agent.actor import leases_partition
from control_plane.agents.leases import LOSS_DETECTION_SORT, Lease, read_leases
from control_plane.state.table import Delete, Key, StateTable
from detcloud.client import Client, Experiment
from detcloud.shared.http import ApiError
from tests.emulators.expected_errors import find_unexpected_errors
from tests.emulators.machines import Machines
from tests.end_to_end.laptop import DIGITS, Laptop
from tests.end_to_end.slow_digits import copy_slow_digits
from tests.patience import poll_until

DONE_SECONDS_MAX = 150.0
SHORT, LONG, LONGEST = 2, 12, 40  # epochs
EPOCH_BATCHES = 22

# Keeps all checkpoints, so that a test can count every checkpoint of a trial.
KEEP_ALL = "checkpoint_storage.save_trial_latest=100"

# The second pool waits only seconds for an instance; agents of the third are started by hand.
POOL, IMPATIENT, DESK = "gpus", "impatient", "desk"

M_co = TypeVar("M_co", covariant=True)


class DeployedCluster(Protocol[M_co]):
    """A cluster with ticks and instances of the type M_co."""

    failures: list[str]
    tick_seconds: float

    @property
    def machines(self) -> Machines:
        """Return the processes of the instances."""

    def tick(self) -> object:
        """Run the tick of a minute; raise the error of a failed tick."""

    def client(self) -> Client:
        """Return a client of the administrator."""

    def billed_instances(self) -> Sequence[M_co]:
        """Return the billed instances of the cluster."""

    def stored_checkpoints(self) -> Sequence[str]:
        """Return the names of the objects in the cluster's checkpoint bucket."""

    def read_checkpoint(self, name: str) -> bytes:
        """Return the content of a checkpoint object."""

    def state_table(self) -> StateTable:
        """Return the cluster's state table."""

    def logged_errors(self) -> Sequence[str]:
        """Return the errors that the functions logged, rendered by `describe_error`."""


def pools_text(provider: str, offerings: str) -> str:
    """Return a configuration of the three pools with this provider type and these offerings."""
    return f"""
resource_manager:
  default_compute_resource_pool: {POOL}
  default_aux_resource_pool: {POOL}
resource_pools:
  - pool_name: {POOL}
    provider:
      type: {provider}
      cpu_slots_allowed: true
      max_instances: 2
      max_idle_agent_period: 5s
      offerings: {offerings}
  - pool_name: {IMPATIENT}
    provider:
      type: {provider}
      cpu_slots_allowed: true
      max_instances: 2
      max_idle_agent_period: 5s
      max_agent_starting_period: 15s
      offerings: {offerings}
  - pool_name: {DESK}
"""


def wait_until(holds: Callable[[], bool], seconds: float, what: str) -> None:
    """Poll until `holds` returns True, less often over time.

    Raises AssertionError long after `seconds`.
    """
    poll_until(holds, seconds, what, pause_seconds=0.2, pause_seconds_max=1.0)


def create(
    person: Laptop,
    epochs: int,
    folder: Path,
    pool: str = POOL,
    batch_seconds: float = 0.0,
    settings: Sequence[str] = (),
) -> int:
    """Create a digits trial of `epochs` epochs; return the experiment.

    `batch_seconds` are added to each batch.
    """
    config = folder / f"digits-{epochs}.yaml"
    text = (DIGITS / "const.yaml").read_text()
    config.write_text(
        text.replace("epochs: 15", f"epochs: {epochs}\nmin_checkpoint_period: {{epochs: 1}}")
    )
    given = (f"resources.resource_pool={pool}", *settings)
    words = [word for setting in given for word in ("--config", setting)]
    code = copy_slow_digits(folder, batch_seconds) if batch_seconds else DIGITS
    created: int = person.json("create", config, code, *words)["id"]
    return created


def trial_of(deployed: DeployedCluster[Any], experiment: int) -> int:
    """Return the id of the experiment's only trial."""
    with deployed.client() as client:
        (trial,) = client.experiment(experiment).trials()
        return trial.id


def validation_steps(deployed: DeployedCluster[Any], trial: int) -> list[int]:
    """Return the batches after which the trial reported a validation."""
    with deployed.client() as client:
        reports = client.trial(trial).metrics("validation")
        return [report["steps_completed"] for report in reports]


def wait_for(deployed: DeployedCluster[Any], person: Laptop, experiment: int) -> dict[str, Any]:
    """Wait until the experiment is completed; return the only trial."""
    with deployed.client() as client:
        wait_for_search(deployed, client, experiment)
    trial = trial_of(deployed, experiment)
    described: dict[str, Any] = person.json("trial", "describe", trial)
    return described


def wait_for_search(deployed: DeployedCluster[Any], client: Client, experiment: int) -> Experiment:
    """Wait until the experiment is completed and return the experiment."""
    search = client.experiment(experiment)

    def is_over() -> bool:
        search.refresh()
        return search.state not in ("ACTIVE", "PAUSED")

    try:
        wait_until(is_over, DONE_SECONDS_MAX, f"experiment {experiment}")
        assert search.state == "COMPLETED"
    except AssertionError as error:
        logs = deployed.machines.all_logs()[-6000:]
        raise AssertionError(f"{error}\n{deployed.failures[-3:]}\n{logs}") from error
    return search


def run_suggested_search(
    deployed: DeployedCluster[Any], person: Laptop, folder: Path, settings: Sequence[str] = ()
) -> int:
    """Run a Bayesian search of three sequential trials; return the completed experiment's id.

    The first point is drawn, and the model suggests the others.
    """
    config = folder / "bayesian.yaml"
    config.write_text(re.sub(r"epochs: \d+", "epochs: 1", (DIGITS / "bayesian.yaml").read_text()))
    few = ("searcher.max_trials=3", "searcher.startup_trials=1", "searcher.max_concurrent_trials=1")
    words = [word for setting in (*few, *settings) for word in ("--config", setting)]
    experiment: int = person.json("create", config, DIGITS, *words)["id"]
    with deployed.client() as client:
        search = wait_for_search(deployed, client, experiment)
        assert [trial.state for trial in search.trials()] == ["COMPLETED"] * 3
        suggestions = [entry["text"] for entry in search.history() if "suggestion" in entry["text"]]
    # The later of two answers to the same question arrives late.
    came = dict.fromkeys(text.partition(":")[0] for text in suggestions)
    assert list(came) == ["suggestion 0 came", "suggestion 1 came"]
    return experiment


def check_ticks(deployed: DeployedCluster[Any]) -> None:
    """Check that ticks succeed and that no function logged an unexpected error.

    On a busy machine some ticks may fail because an answer came too late; the next tick repeats the
    work.
    """
    failures: list[str] = []

    def succeeds() -> bool:
        try:
            deployed.tick()
        except Exception as error:
            failures.append(str(error))
            return False
        return True

    try:
        wait_until(succeeds, 30, "a tick that succeeds")
    except AssertionError as error:
        raise AssertionError(
            f"{error}: {failures[-3:]}, and before {deployed.failures[-3:]}"
        ) from None
    unexpected = find_unexpected_errors([*deployed.failures, *failures], deployed.logged_errors())
    assert not unexpected, "\n".join(unexpected)


def running(deployed: DeployedCluster[M_co], count: int = 1) -> Sequence[M_co]:
    """Wait until `count` instances are billed; return the billed instances."""
    wait_until(lambda: len(deployed.billed_instances()) >= count, 60, f"{count} instances")
    return deployed.billed_instances()


def first_checkpoint(deployed: DeployedCluster[Any], experiment: int) -> int:
    """Wait until the experiment's trial has stored a checkpoint; return the trial."""
    trial = trial_of(deployed, experiment)
    wait_until(lambda: len(checkpoints(deployed, trial)) > 0, 60, "a first checkpoint")
    return trial


def checkpoints(deployed: DeployedCluster[Any], trial: int) -> list[str]:
    """Return the complete checkpoints of the trial in the bucket."""
    # EXPERIMENT/TRIAL/EPOCH/UUID
    return [
        name
        for name in deployed.stored_checkpoints()
        if name.split("/")[1] == str(trial) and name.endswith("manifest.json")
    ]


def steps_kept(deployed: DeployedCluster[Any], trial: int, epoch: int) -> list[int]:
    """Return the batches of the checkpoints of the trial's allocation."""
    ours = [name for name in checkpoints(deployed, trial) if name.split("/")[2] == str(epoch)]
    manifests: list[Mapping[str, Any]] = [
        json.loads(deployed.read_checkpoint(text)) for text in ours
    ]
    return sorted(manifest["metadata"]["steps_completed"] for manifest in manifests)


def check_replacement(
    deployed: DeployedCluster[Any], trial: int, described: Mapping[str, Any]
) -> None:
    """Check that a trial saved work before a loss, and resumed on a second machine."""
    assert (described["restarts"], described["losses"]) == (0, 1)
    assert "this spot instance" in described["recent_losses"][0]["cause"]
    assert described["steps_completed"] == described["target_steps"]
    # The last checkpoint before the loss is from the notice rather than from an epoch's end, and
    # the next run resumed from this checkpoint.
    left, resumed = (steps_kept(deployed, trial, epoch) for epoch in (1, 2))
    assert left[-1] % EPOCH_BATCHES
    assert left[-1] < resumed[0] <= left[-1] + EPOCH_BATCHES


def failed_boot(person: Laptop, command: str) -> dict[str, Any]:
    """Return the only failed boot of the first pool, which failed at `command`."""
    boot: dict[str, Any]
    (boot,) = person.json("resource-pool", "describe", POOL)["fleet"]["failed_boots"]
    assert boot["boot_log"].splitlines()[-2] == f"{command}: it is broken"
    assert "detcloud: the boot failed:" in boot["reason"]
    assert f"{command} -aG docker detcloud" in boot["reason"]
    return boot


def status_of(call: Callable[[], object]) -> int:
    """Return the HTTP status of a call, 200 on success."""
    try:
        call()
    except ApiError as error:
        return error.status
    return 200


def lease_of(deployed: DeployedCluster[Any], instance: str) -> Lease:
    """Return the lease of the agent of an instance of the first pool."""
    return read_leases(deployed.state_table(), POOL)[instance]


@contextmanager
def ticks_stopped(deployed: DeployedCluster[Any]) -> Iterator[None]:
    """Stop our periodic ticks until the block ends."""
    ticked_each_seconds, deployed.tick_seconds = deployed.tick_seconds, math.inf
    try:
        yield
    finally:
        deployed.tick_seconds = ticked_each_seconds


def forget_passes(deployed: DeployedCluster[Any]) -> None:
    """Forget the last passes over the first pool's leases, and the pause after an outage.

    The next pass then depends neither on the time since the last pass nor on a pause.
    """
    table = deployed.state_table()
    row = table.get(Key(leases_partition(POOL), LOSS_DETECTION_SORT))
    if row is not None:
        table.commit((Delete(row.key, row.revision),))
