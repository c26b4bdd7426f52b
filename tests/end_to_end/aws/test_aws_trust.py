"""Trust in a deployed cluster: stolen or expired tokens, and manually started machines."""

import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path

import pytest

from control_plane.access.tokens import token_digest
from detcloud.agent.join_token import IdentityRefused
from tests.emulators.deployment import Deployment, Stack
from tests.emulators.ec2.machine import Machine
from tests.end_to_end.aws.cluster import end, prove
from tests.end_to_end.cluster_steps import (
    DESK,
    LONGEST,
    POOL,
    SHORT,
    checkpoints,
    create,
    status_of,
    wait_for,
    wait_until,
)
from tests.end_to_end.instance_tokens import Overheard, check_proof_scope, check_token_scope
from tests.end_to_end.laptop import Laptop
from tests.patience import ANSWER_SECONDS_MAX, PROCESS_SECONDS_MAX

Agent = subprocess.Popen[str]

HOUR_MS = 3_600_000
OTHER_NAME = "i-0123456789abcdef0"


@pytest.mark.nightly
def test_credentials_of_an_instance_are_not_transferable_and_expire_at_the_end(
    deployment: Deployment,
    person: Laptop,
    instance: Machine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", deployment.aws.url)
    joins = prove(deployment, instance, tmp_path / "join.token")
    proof = Overheard.bodies[-1]

    check_proof_scope(deployment, proof, instance.id, OTHER_NAME)
    assert not alarms(deployment, instance)
    # A thief of the instance's keys can sign for a second token, but too late and with an alarm.
    with pytest.raises(IdentityRefused, match="has already proved its identity"):
        prove(deployment, instance, tmp_path / "thiefs.token")
    assert len(alarms(deployment, instance)) == 1

    check_token_scope(
        deployment, person, joins, instance.id, OTHER_NAME, lambda: end(deployment, instance)
    )


def alarms(deployment: Stack, machine: Machine) -> list[str]:
    """Return the lines of the API's log that alert the team."""
    lines = deployment.log_messages("api")
    return [line for line in lines if '"level": "CRITICAL"' in line and machine.id in line]


def test_user_token_ends_on_expiry_or_revocation(deployment: Deployment, person: Laptop) -> None:
    with deployment.client() as admin:
        expiring = admin.create_token("ada", expires_days=1).data["token"]
        revoked = admin.create_token("ada").data
        table = deployment.aws.client("dynamodb")
        for token in (expiring, revoked["token"]):
            with deployment.client(token) as ada:
                assert ada.whoami()["user"] == "ada"
                assert status_of(partial(ada.post, "/agents/node/disable")) == 403
        # The row is changed to be a day older.
        row = {"p": {"S": "tokens"}, "s": {"S": token_digest(expiring)}}
        item = table.get_item(TableName=deployment.outputs["table"], Key=row)["Item"]
        fields = json.loads(item["b"]["B"])
        assert 23 * HOUR_MS < fields["expires_ms"] - time.time() * 1000 <= 24 * HOUR_MS
        body = json.dumps({**fields, "expires_ms": fields["expires_ms"] - 24 * HOUR_MS}).encode()
        table.put_item(TableName=deployment.outputs["table"], Item={**item, "b": {"B": body}})
        person.run("token", "revoke", revoked["id"])
    for token in (expiring, revoked["token"]):
        with deployment.client(token) as ada:
            assert status_of(ada.whoami) == 401


def test_request_without_a_token_is_refused_with_a_message(deployment: Deployment) -> None:
    with pytest.raises(urllib.error.HTTPError) as raised:
        urllib.request.urlopen(f"{deployment.url}/api/v1/experiments", timeout=ANSWER_SECONDS_MAX)
    assert raised.value.code == 401
    assert json.loads(raised.value.read())["error"]["code"] == "unauthenticated"
    raised.value.close()


def start_agent(deployment: Deployment, person: Laptop, folder: Path, pool: str) -> Agent:
    """Start an agent with a single slot and the join token of DESK, in `folder`."""
    # As described in docs/resource-pools.md.
    (folder / "join.token").write_text(person.run("token", "create", "--join", DESK).stdout)
    given = {"--url": deployment.url, "--pool": pool, "--name": "node-1", "--slots": "1"}
    given |= {"--token-file": "join.token", "--work-dir": f"work-{pool}"}
    words = [name for pair in given.items() for name in pair]
    return subprocess.Popen(
        [sys.executable, "-m", "detcloud.agent", *words],
        cwd=folder,
        env=person.environment,
        stderr=subprocess.PIPE,
        text=True,
    )


def stop_agent(agent: Agent) -> None:
    """Stop an agent, which must end without an error."""
    agent.send_signal(signal.SIGTERM)
    errors = agent.communicate(timeout=PROCESS_SECONDS_MAX)[1]
    assert agent.returncode == 0, errors


@pytest.mark.nightly
def test_manually_started_machine_joins_only_the_pool_of_the_token(
    deployment: Deployment, person: Laptop, tmp_path: Path
) -> None:
    refused = start_agent(deployment, person, tmp_path, POOL)
    assert f"not valid for pool {POOL}" in refused.communicate(timeout=PROCESS_SECONDS_MAX)[1]
    assert refused.returncode == 1
    joined = start_agent(deployment, person, tmp_path, DESK)
    try:
        described = wait_for(deployment, person, create(person, SHORT, tmp_path, DESK))
        assert described["best_metric"] > 0.8
        # The machine has no keys of AWS: the cluster issues the keys for its trial's checkpoints.
        assert checkpoints(deployment, described["id"])
    finally:
        stop_agent(joined)
    assert not deployment.billed_instances()


@pytest.mark.nightly
def test_job_overflows_from_own_machine_to_spot_instances(
    deployment: Deployment, person: Laptop, tmp_path: Path
) -> None:
    joined = start_agent(deployment, person, tmp_path, DESK)
    try:
        (tmp_path / "long").mkdir()
        long = create(person, LONGEST, tmp_path / "long", DESK, batch_seconds=1.0)
        wait_until(lambda: is_running(person, long), 60, "the run of the first job")
        pools = f"[{DESK}, {POOL}]"
        patience = ("resources.pool_patience=15s",)
        short = create(person, SHORT, tmp_path, pools, settings=patience)
        described = wait_for(deployment, person, short)
        assert described["best_metric"] > 0.8
        assert person.json("experiment", "describe", short)["resource_pool"] == POOL
        assert is_running(person, long)
        person.run("experiment", "kill", long)
        wait_until(lambda: not is_running(person, long), 60, "the end of the first job")
    finally:
        stop_agent(joined)
    wait_until(lambda: not deployment.billed_instances(), 60, "an empty pool")


def is_running(person: Laptop, experiment: int) -> bool:
    """Return whether a trial of the experiment runs on an agent."""
    trials = person.json("experiment", "list-trials", experiment)
    return any(trial["allocation"] and trial["allocation"]["places"] for trial in trials)
