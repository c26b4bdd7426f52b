"""Steps that tests and users take with a cluster that is deployed to some cloud, and waits for
their results. Instances are processes of this machine, which may have no GPU.
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

# So that whoever counts checkpoints counts all that a trial has made.
KEEP_ALL = "checkpoint_storage.save_trial_latest=100"

# The second pool believes in an instance for seconds only; agents of the third are started by hand.
POOL, IMPATIENT, DESK = "gpus", "impatient", "desk"

M_co = TypeVar("M_co", covariant=True)


class DeployedCluster(Protocol[M_co]):
    """A cluster that works by itself, whose instances are of the type M_co."""

    failures: list[str]
    tick_seconds: float

    @property
    def machines(self) -> Machines:
        """The processes of its instances."""

    def tick(self) -> object:
        """Run what each minute runs; raises what it failed with."""

    def client(self) -> Client:
        """Return a client of the administrator."""

    def billed_instances(self) -> Sequence[M_co]:
        """Return its instances that are billed."""

    def stored_checkpoints(self) -> Sequence[str]:
        """Return the names of the objects in its bucket of checkpoints."""

    def read_checkpoint(self, name: str) -> bytes:
        """Return the content of one of them."""

    def state_table(self) -> StateTable:
        """Return its state."""

    def logged_errors(self) -> Sequence[str]:
        """Return what its functions logged as errors, as `describe_error` has them."""


def pools_text(provider: str, offerings: str) -> str:
    """Return a configuration of the three pools, whose instances are of a cloud's type of provider
    and its offerings.
    """
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
    """Wait until something holds, looking less often the longer it takes. Raises AssertionError
    long after `seconds`.
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
    """One digits trial of so many epochs, whose batches take so much longer; its experiment."""
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
    """The experiment's only one."""
    with deployed.client() as client:
        (trial,) = client.experiment(experiment).trials()
        return trial.id


def validation_steps(deployed: DeployedCluster[Any], trial: int) -> list[int]:
    """After how many batches it reported a validation."""
    with deployed.client() as client:
        reports = client.trial(trial).metrics("validation")
        return [report["steps_completed"] for report in reports]


def wait_for(deployed: DeployedCluster[Any], person: Laptop, experiment: int) -> dict[str, Any]:
    """The experiment's one trial, once it is completed."""
    with deployed.client() as client:
        wait_for_search(deployed, client, experiment)
    trial = trial_of(deployed, experiment)
    described: dict[str, Any] = person.json("trial", "describe", trial)
    return described


def wait_for_search(deployed: DeployedCluster[Any], client: Client, experiment: int) -> Experiment:
    """The experiment, once it is completed."""
    asked = client.experiment(experiment)

    def is_over() -> bool:
        asked.refresh()
        return asked.state not in ("ACTIVE", "PAUSED")

    try:
        wait_until(is_over, DONE_SECONDS_MAX, f"experiment {experiment}")
        assert asked.state == "COMPLETED"
    except AssertionError as error:
        logs = deployed.machines.all_logs()[-6000:]
        raise AssertionError(f"{error}\n{deployed.failures[-3:]}\n{logs}") from error
    return asked


def run_suggested_search(
    deployed: DeployedCluster[Any], person: Laptop, folder: Path, settings: Sequence[str] = ()
) -> int:
    """Run a Bayesian search of three trials, one after the other: the first point is drawn, and the
    model is asked for the others. Returns its experiment, once all of that happened.
    """
    config = folder / "bayesian.yaml"
    config.write_text(re.sub(r"epochs: \d+", "epochs: 1", (DIGITS / "bayesian.yaml").read_text()))
    few = ("searcher.max_trials=3", "searcher.startup_trials=1", "searcher.max_concurrent_trials=1")
    words = [word for setting in (*few, *settings) for word in ("--config", setting)]
    experiment: int = person.json("create", config, DIGITS, *words)["id"]
    with deployed.client() as client:
        search = wait_for_search(deployed, client, experiment)
        assert [trial.state for trial in search.trials()] == ["COMPLETED"] * 3
        told = [entry["text"] for entry in search.history() if "suggestion" in entry["text"]]
    # Of two answers to one question the later is late.
    came = dict.fromkeys(text.partition(":")[0] for text in told)
    assert list(came) == ["suggestion 0 came", "suggestion 1 came"]
    return experiment


def check_ticks(deployed: DeployedCluster[Any]) -> None:
    """Check that ticks succeed. Some may have failed on a busy machine, where an answer came too
    late, and for nothing else: what one leaves undone is the next one's. Nor may any function have
    logged another error.
    """
    said: list[str] = []

    def succeeds() -> bool:
        try:
            deployed.tick()
        except Exception as error:
            said.append(str(error))
            return False
        return True

    try:
        wait_until(succeeds, 30, "a tick that succeeds")
    except AssertionError as error:
        raise AssertionError(f"{error}: {said[-3:]}, and before {deployed.failures[-3:]}") from None
    unexpected = find_unexpected_errors([*deployed.failures, *said], deployed.logged_errors())
    assert not unexpected, "\n".join(unexpected)


def running(deployed: DeployedCluster[M_co], count: int = 1) -> Sequence[M_co]:
    """The instances, once there are so many."""
    wait_until(lambda: len(deployed.billed_instances()) >= count, 60, f"{count} instances")
    return deployed.billed_instances()


def first_checkpoint(deployed: DeployedCluster[Any], experiment: int) -> int:
    """The experiment's trial, once it has stored one."""
    trial = trial_of(deployed, experiment)
    wait_until(lambda: len(checkpoints(deployed, trial)) > 0, 60, "a first checkpoint")
    return trial


def checkpoints(deployed: DeployedCluster[Any], trial: int) -> list[str]:
    """Whole checkpoints of the trial in the bucket."""
    # EXPERIMENT/TRIAL/EPOCH/UUID
    return [
        name
        for name in deployed.stored_checkpoints()
        if name.split("/")[1] == str(trial) and name.endswith("manifest.json")
    ]


def steps_kept(deployed: DeployedCluster[Any], trial: int, epoch: int) -> list[int]:
    """The batches that the checkpoints of the trial's allocation hold."""
    ours = [name for name in checkpoints(deployed, trial) if name.split("/")[2] == str(epoch)]
    manifests: list[Mapping[str, Any]] = [
        json.loads(deployed.read_checkpoint(text)) for text in ours
    ]
    return sorted(manifest["metadata"]["steps_completed"] for manifest in manifests)


def check_replacement(
    deployed: DeployedCluster[Any], trial: int, described: Mapping[str, Any]
) -> None:
    """Check that a trial, whose machine was taken away once in an epoch, saved its work and went on
    with it elsewhere.
    """
    assert (described["restarts"], described["losses"]) == (0, 1)
    assert "this spot instance" in described["recent_losses"][0]["cause"]
    assert described["steps_completed"] == described["target_steps"]
    # Its last checkpoint there is of the notice, not of an epoch's end, and its work went on there.
    left, resumed = (steps_kept(deployed, trial, epoch) for epoch in (1, 2))
    assert left[-1] % EPOCH_BATCHES
    assert left[-1] < resumed[0] <= left[-1] + EPOCH_BATCHES


def failed_boot(person: Laptop, command: str) -> dict[str, Any]:
    """The only boot of the first pool that failed, at this command of the boot script."""
    boot: dict[str, Any]
    (boot,) = person.json("resource-pool", "describe", POOL)["fleet"]["failed_boots"]
    assert boot["boot_log"].splitlines()[-2] == f"{command}: it is broken"
    assert "detcloud: the boot failed with 6 at line" in boot["reason"]
    assert f"{command} -aG docker detcloud" in boot["reason"]
    return boot


def status_of(call: Callable[[], object]) -> int:
    """Return the HTTP status of a call; 200 where it succeeds."""
    try:
        call()
    except ApiError as error:
        return error.status
    return 200


def lease_of(deployed: DeployedCluster[Any], instance: str) -> Lease:
    """The lease of the agent of an instance of the first pool."""
    return read_leases(deployed.state_table(), POOL)[instance]


@contextmanager
def ticks_stopped(deployed: DeployedCluster[Any]) -> Iterator[None]:
    """No tick of ours comes by itself."""
    ticked_each_seconds, deployed.tick_seconds = deployed.tick_seconds, math.inf
    try:
        yield
    finally:
        deployed.tick_seconds = ticked_each_seconds


def forget_passes(deployed: DeployedCluster[Any]) -> None:
    """Forget the passes over the leases of the first pool and their pause: what the next one does
    hangs neither on how long ago the last one was, nor on a pause that has just ended.
    """
    table = deployed.state_table()
    row = table.get(Key(leases_partition(POOL), LOSS_DETECTION_SORT))
    if row is not None:
        table.commit((Delete(row.key, row.revision),))
