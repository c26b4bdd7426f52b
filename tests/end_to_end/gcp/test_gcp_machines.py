"""A cluster on Google Cloud, from a command to machines that boot, train, are preempted, and end.

Functions are processes that the events of Firestore's commits and the clock call. Machines are
processes that boot from the startup script of their bulk insert. Checks of Google without an
emulator, IAM and signatures of URLs, are not tested here.
"""

from __future__ import annotations

import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from control_plane.agents.agent_code import agent_code
from control_plane.state.table import Key
from tests.conftest import require_installed
from tests.end_to_end.cluster_steps import (
    DONE_SECONDS_MAX,
    KEEP_ALL,
    check_replacement,
    check_ticks,
    first_checkpoint,
    run_suggested_search,
    running,
    wait_for,
    wait_for_search,
    wait_until,
)
from tests.end_to_end.gcp.cluster import (
    FULL_ZONE,
    OTHER_ZONE,
    PHOTOS,
    SCRATCH,
    TYPE,
    create,
    variable,
)
from tests.end_to_end.gcp.permissions import idle_permissions, refused_uses
from tests.end_to_end.laptop import Laptop
from tests.end_to_end.tiny_model import write_model
from tests.patience import ANSWER_SECONDS_MAX, PATIENCE

if TYPE_CHECKING:
    from tests.emulators.deployment_gcp import GcpDeployment

# Compute Engine's time between the notice and the end of a machine.
NOTICE_SECONDS = 30
# Permissions that the accounts need for operations outside this test.
NEEDED_ELSEWHERE = {
    # Users upload, list and download checkpoints.
    *(("api", f"storage.objects.{name}", "checkpoints") for name in ("create", "get", "list")),
    # Without the right to list, Google reports a missing object as forbidden.
    ("api", "storage.objects.list", "objects"),
    ("storage", "storage.objects.list", "checkpoints"),
    # Expired metrics that are thinned.
    ("checkpoint_gc", "storage.objects.get", "objects"),
    # Experiments with long logs, and checkpoints without a row.
    ("checkpoint_gc", "storage.objects.delete", "objects"),
    ("checkpoint_gc", "storage.objects.get", "checkpoints"),
    # Machines that do not boot, inserts anywhere in a region, and code that was kept already.
    ("tick", "compute.instances.getSerialPortOutput", ""),
    ("tick", "compute.regionOperations.get", ""),
    ("tick", "storage.objects.get", "objects"),
    # Code that uses data, in a later test of this module.
    ("api", "iam.serviceAccounts.getAccessToken", "data"),
    *(("data", f"storage.objects.{name}", "") for name in ("create", "delete", "get", "list")),
}
# A user's program without credentials other than the machine's. With an emulator, Google's client
# uses no credentials by itself.
USE_DATA = """
import google.auth
from google.api_core.exceptions import Forbidden
from google.cloud.storage import Client

credentials, project = google.auth.default()
store = Client(project=project, credentials=credentials)
photos, scratch = store.bucket("our-photos"), store.bucket("our-scratch")
for number in (1, 2):
    scratch.blob("vision/seen").upload_from_string(f"{number} of " + project)
print("read", photos.blob("cats/1.jpg").download_as_text(), "in", project)
for name, act in {
    "written": lambda: photos.blob("cats/2.jpg").upload_from_string("mine"),
    "left": lambda: scratch.blob("visions/other").download_as_text(),
    "another's": lambda: store.bucket("CHECKPOINTS").blob("1/1/1/x").download_as_text(),
}.items():
    try:
        act()
        print("not refused:", name)
    except Forbidden:
        print("refused:", name)
"""


def test_trial_resumes_on_a_second_machine_and_leaves_an_empty_pool(
    deployment: GcpDeployment, person: Laptop, tmp_path: Path
) -> None:
    project = deployment.project
    # A zone has no capacity, and every event arrives twice and up to half a second late.
    project.capacity[TYPE, FULL_ZONE, "spot"] = 0
    for trigger in deployment.events.triggers.values():
        trigger.lag_seconds, trigger.repeats = 0.5, 1
    # Three epochs of 7 s each: the notice arrives in the middle of the second.
    experiment = create(deployment, person, 3, tmp_path, batch_seconds=0.3, settings=(KEEP_ALL,))
    (machine,) = running(deployment)
    assert machine.zone == OTHER_ZONE
    trial = first_checkpoint(deployment, experiment)
    time.sleep(1.0)
    project.preempt(machine.name)
    noticed = time.monotonic()
    wait_until(lambda: len(project.machines) > 1, 30, "a replacement")
    assert time.monotonic() - noticed < NOTICE_SECONDS, "the replacement comes before the end"
    described = wait_for(deployment, person, experiment)
    check_replacement(deployment, trial, described)
    # Each trial wrote with a restricted token; machines got the agent's code from its bucket.
    assert len(deployment.tokens.issued) >= 2
    kept = deployment.stored_objects("objects", "agent-code/")
    assert kept == [f"agent-code/{agent_code().sha256}"]
    commands = (deployment.machines.disk(machine.name) / "commands.log").read_text()
    # The watchdog and the firewall start before all other commands.
    order = [commands.index(f"--now detcloud-{name}") for name in ("watchdog", "firewall", "agent")]
    assert order == sorted(order)
    wait_until(lambda: not deployment.billed_instances(), 60, "an empty pool")

    def remaining_names() -> list[str]:
        places = (("objects", f"logs/{described['id']}/"), ("checkpoints", f"{experiment}/"))
        return [
            stored_object for place in places for stored_object in deployment.stored_objects(*place)
        ]

    assert remaining_names()
    person.run("experiment", "delete", experiment, "--yes")
    wait_until(lambda: not remaining_names(), 60, "the end of checkpoints and logs")
    check_ticks(deployment)
    assert all(item.sent and not item.lost for item in deployment.events.triggers.values())
    # Each account used all of its permissions and needed no others.
    assert refused_uses(deployment) == []
    assert idle_permissions(deployment) <= NEEDED_ELSEWHERE


@pytest.mark.nightly
def test_trials_of_a_search_run_on_machines_of_a_single_bulk_insert(
    deployment: GcpDeployment, person: Laptop, tmp_path: Path
) -> None:
    before = set(deployment.project.machines)
    inserts = deployment.project.calls.count("bulkInsert")
    environment = {"environment_variables": [variable(deployment)]}
    config, model = write_model(tmp_path, pause_seconds=0.2, environment=environment)
    created = person.json("create", config, model)["id"]
    with deployment.client() as client:
        experiment = wait_for_search(deployment, client, created)
        assert [trial.state for trial in experiment.trials()] == ["COMPLETED"] * 2
        assert [len(list(trial.metrics("validation"))) for trial in experiment.trials()] == [1, 1]
        assert len(list(experiment.checkpoints())) == 2
    assert len(set(deployment.project.machines) - before) == 2
    # An unfinished launch is requested again with the same request id.
    assert deployment.project.calls.count("bulkInsert") > inserts


@pytest.mark.nightly
def test_model_on_gcp_suggests_the_points_of_a_search(
    deployment: GcpDeployment, person: Laptop, tmp_path: Path
) -> None:
    require_installed("optuna")
    place = f"environment.environment_variables=[{variable(deployment)}]"
    experiment = run_suggested_search(deployment, person, tmp_path, (place,))
    assert not deployment.table.get(Key("suggestions", str(experiment)))
    # The tick started the function, which asked the model.
    assert any(line.get("passes") for line in deployment.log_lines("suggest"))


@pytest.mark.nightly
def test_user_program_reads_and_writes_the_deployments_data_without_keys(
    deployment: GcpDeployment, person: Laptop, tmp_path: Path
) -> None:
    deployment.gcs.upload(PHOTOS, "cats/1.jpg", b"a cat")
    deployment.gcs.upload(SCRATCH.partition("/")[0], "visions/other", b"another's")
    program = USE_DATA.replace("CHECKPOINTS", deployment.outputs["checkpoints"])
    place = f"environment.environment_variables=[{variable(deployment)}]"
    words = ("command", "run", "--config", place, "--", "python3", "-c", program)
    done = person.run(*words, seconds=DONE_SECONDS_MAX * PATIENCE)
    assert done.stdout.splitlines()[-4:] == [
        f"read a cat in {deployment.names.project}",
        "refused: written",
        "refused: left",
        "refused: another's",
    ]
    url = f"{deployment.gcs.url}/storage/v1/b/our-scratch/o/vision%2Fseen?alt=media"
    with urllib.request.urlopen(url, timeout=ANSWER_SECONDS_MAX) as answer:
        assert answer.read() == f"2 of {deployment.names.project}".encode()
