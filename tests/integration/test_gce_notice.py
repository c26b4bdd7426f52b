"""From a notice of Compute Engine to a checkpoint in Cloud Storage, within the notice's time."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from google.oauth2.credentials import Credentials

from control_plane.agents.storage_credentials import StorageAccess
from control_plane.gcp.storage_credentials import DownscopedTokenIssuer
from detcloud.storage import build_store
from tests.emulators.fake_gcs import FakeGcs
from tests.emulators.gce.metadata import MachineMetadata, metadata_server
from tests.emulators.gcs_boundaries import NarrowedTokens, narrowed_storage
from tests.emulators.google_keys import GoogleKeys
from tests.integration.agent_cluster import FakeCluster
from tests.integration.agent_process import PRELUDE, AgentProcess
from tests.patience import PROCESS_SECONDS_MAX, wait_until

pytestmark = pytest.mark.end_to_end

TRAIN = """
import time
from detcloud import core
with core.init() as context:
    context.train.report_training_metrics(1, {"loss": 0.5})
    while not context.preempt.should_preempt():
        time.sleep(0.01)
    with context.checkpoint.store_path({"steps_completed": 7}) as (folder, uuid):
        (folder / "weights").write_bytes(b"w" * 100_000)
"""


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[MachineMetadata]:
    metadata = MachineMetadata("detcloud-vision-a1b2", GoogleKeys())
    with metadata_server(metadata) as host:
        monkeypatch.setenv("GCE_METADATA_HOST", host)
        yield metadata


@pytest.fixture
def store(gcs: FakeGcs) -> Iterator[str]:
    tokens = NarrowedTokens("storage@team", frozenset({"of-the-api"}))
    with narrowed_storage(tokens, gcs.url) as url:
        yield url


def give_tokens(cluster: FakeCluster, url: str, access: StorageAccess) -> None:
    """Make the cluster answer requests for credentials with a token of this access."""
    issuer = DownscopedTokenIssuer(
        "storage@team", lambda: Credentials("of-the-api"), iam_endpoint=url, token_endpoint=url
    )
    post = cluster.post

    def post_or_issue(path: str, authorization: str, body: dict[str, Any]) -> tuple[int, Any]:
        if not path.endswith("/storage-credentials"):
            return post(path, authorization, body)
        token = issuer.issue_credentials(f"trial-{body['allocation']}", access)
        return 200, {"access_token": token.access_token, "expires_ms": token.expires_ms}

    cluster.post = post_or_issue  # type: ignore[method-assign]


# The metadata announce the end. With True, the machine is also shut down, and systemd stops the
# agent before the network and the containers.
@pytest.mark.parametrize("is_switched_off", [False, True])
def test_trial_saves_before_a_spot_instance_ends(
    agent: AgentProcess,
    cluster: FakeCluster,
    machine: MachineMetadata,
    store: str,
    gcs: FakeGcs,
    is_switched_off: bool,
) -> None:
    bucket = gcs.new_bucket()
    give_tokens(cluster, store, StorageAccess(bucket, ("1/4/1",), ("1/4",)))
    variables = {"cpu": [f"STORAGE_EMULATOR_HOST={store}"], "cuda": []}
    cluster.assign_files(
        "4.1",
        {"train.py": TRAIN},
        entrypoint="python train.py",
        experiment_id=1,
        trial_id=4,
        epoch=1,
        storage={"type": "gcs", "bucket": bucket, "credentials": "given"},
        config={"environment": {"environment_variables": variables}},
    )
    process = agent.start("--notices", "gce")
    wait_until(lambda: any(line["kind"] == "metrics" for line in cluster.lines("4.1")), 40)
    announced_ms = time.time_ns() // 1_000_000
    machine.set_preempted()
    if is_switched_off:
        process.send_signal(signal.SIGTERM)
    exited = wait_until(lambda: cluster.exit_record("4.1"), PROCESS_SECONDS_MAX)
    assert exited is not None
    if is_switched_off:
        # The agent ends after the trial, so that systemd can continue.
        assert process.wait(PROCESS_SECONDS_MAX) == 0
    else:
        assert exited["notice"] == "Compute Engine is preempting this spot instance"
    assert exited["reason"] == "preempted"
    saved = [line for line in cluster.lines("4.1") if line["kind"] == "checkpoint"]
    assert len(saved) == 1, cluster.log
    # Thirty seconds from a notice to the end of the machine.
    assert saved[0]["time_ms"] <= announced_ms + 30_000
    # Read without a token, since the emulator allows all reads.
    files = build_store({"type": "gcs", "bucket": bucket}).list(saved[0]["path"])
    assert files[f"{saved[0]['path']}/weights"] == 100_000
    assert f"{saved[0]['path']}/manifest.json" in files


def test_stopping_agent_on_an_ending_machine_announces_the_earlier_end(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    # Some clouds announce the end and shut the machine down at once.
    watch = """
heard = None
report("ready")
while True:
    notice = directives().get("preempt")
    if notice != heard:
        heard = notice
        report("heard", **notice)
    time.sleep(0.01)
"""
    cluster.assign("4.1", PRELUDE + watch)
    process = agent.start("--stop-seconds", "3")
    wait_until(lambda: cluster.lines("4.1"))
    ends_ms = time.time_ns() // 1_000_000 + 3_600_000
    notice = {"deadline_ms": ends_ms, "reason": "spot"}
    (agent.work / "preemption-notice.json").write_text(json.dumps(notice))
    wait_until(lambda: any(line.get("reason") == "spot" for line in cluster.lines("4.1")))
    process.send_signal(signal.SIGTERM)
    assert process.wait(PROCESS_SECONDS_MAX) == 0
    heard = [line for line in cluster.lines("4.1") if line["kind"] == "heard"]
    assert heard[0]["deadline_ms"] == ends_ms
    # At the end of the agent's own time the trial is killed, with the notice of its machine as the
    # reason.
    assert heard[-1]["deadline_ms"] <= time.time_ns() // 1_000_000
    exited = cluster.exit_record("4.1")
    assert exited is not None
    assert (exited["reason"], exited["notice"]) == ("killed", "spot")
