"""The self-test of a deployed cluster, `detcloud deploy verify aws`, on the emulator."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from detcloud.cli.verification.check_programs import STAND_IN
from tests.emulators.alarm_actions import alarm_actions
from tests.emulators.deployment import Deployment
from tests.emulators.fargate import fargate
from tests.emulators.machine_network import MachineNetwork
from tests.emulators.ministack import ACCOUNT, REGION
from tests.end_to_end.aws.cluster import allow_on_cluster
from tests.end_to_end.cluster_steps import POOL, wait_until
from tests.end_to_end.laptop import COMMAND_SECONDS_MAX, Laptop

ALARMS = ("api", "dead-letters", "errors", "minute", "throttles")


@pytest.fixture
def operator(deployment: Deployment, tmp_path: Path) -> Iterator[Laptop]:
    """Yield the home of the deployer, with the stack's settings and the account's keys."""
    aws = deployment.aws
    (tmp_path / "pools.yaml").write_text("resource_pools: [{pool_name: unused}]\n")
    (tmp_path / "Pulumi.vision.yaml").write_text(
        f'config:\n  detcloud:account: "{ACCOUNT}"\n  detcloud:region: {REGION}\n'
        "  detcloud:clusterConfig: pools.yaml\n"
    )
    teams = tmp_path / ".detcloud" / "teams"
    teams.mkdir(parents=True)
    (teams / "vision.token").write_text(deployment.token)
    variables = {
        "AWS_ENDPOINT_URL": aws.url,
        "AWS_ENDPOINT_URL_EC2": deployment.account.ec2.url,
        "AWS_ACCESS_KEY_ID": aws.key,
        "AWS_SECRET_ACCESS_KEY": aws.secret,
        "AWS_REGION": REGION,
    }
    with alarm_actions(aws.url) as cloudwatch:
        variables["AWS_ENDPOINT_URL_CLOUDWATCH"] = cloudwatch
        yield Laptop(tmp_path / "home", DETCLOUD_URL=deployment.url, **variables)


@pytest.mark.nightly
def test_self_test_opens_a_tunnel_before_the_notice(
    deployment: Deployment, closed_network: MachineNetwork, operator: Laptop, tmp_path: Path
) -> None:
    cluster = deployment.function_name("relay")
    allow_on_cluster(deployment, cluster)
    options = ("--pool", POOL, "--check", STAND_IN, "--report", tmp_path / "report.txt")
    words = ("deploy", "verify", "aws", "--team", "vision", *options, "--yes", "--json")
    with fargate(deployment.aws, cluster, tmp_path / "tasks", closed_network) as tasks:
        report = json.loads(operator.run(*words, seconds=2 * COMMAND_SECONDS_MAX).stdout)
        assert report["ok"], tasks.log()
    [step] = [step for step in report["steps"] if step["name"] == "tunnel"]
    assert step["result"] == "ok", tasks.log()
    assert step["details"]["seconds to the first byte"] > 0


@pytest.mark.nightly
def test_self_test_launches_interrupts_and_leaves_nothing(
    deployment: Deployment, operator: Laptop, tmp_path: Path
) -> None:
    region = deployment.account.ec2.region
    before = set(region.machines)
    # The check of GPUs takes a minute on two cores, and no relay runs here.
    chosen = ("--pool", POOL, "--skip", "tunnel")
    options = (*chosen, "--check", STAND_IN, "--report", tmp_path / "report.txt")
    words = ("deploy", "verify", "aws", "--team", "vision", *options, "--yes", "--json")
    done = operator.run(*words, seconds=2 * COMMAND_SECONDS_MAX)
    report = json.loads(done.stdout)
    assert report["ok"], done
    steps = {step["name"]: step for step in report["steps"]}
    assert list(steps) == [f"pool {POOL}", f"notice in pool {POOL}", "alarms", "cleanup"]
    phases = steps[f"pool {POOL}"]["details"]["seconds from submission"]
    assert list(phases) == ["launched", "enrolled", "started", "ended"]
    assert list(phases.values()) == sorted(phases.values())
    notice = steps[f"notice in pool {POOL}"]["details"]
    assert notice["simulated"]
    assert notice["resumed at batch"] == notice["saved at batch"] > 0
    assert notice["first machine"] != notice["second machine"]
    assert steps["alarms"]["details"] == {f"detcloud-vision-{name}": "ok" for name in ALARMS}
    # Nothing is left, and the report has no secrets.
    assert report["leftovers"] == []
    ended = set(steps["cleanup"]["details"]["ended instances"])
    assert {notice["first machine"], notice["second machine"]} <= ended
    assert ended <= set(region.machines) - before
    wait_until(lambda: not deployment.billed_instances(), 60, "an empty pool")
    with deployment.client() as client:
        labels = [label for item in client.experiments(archived=None) for label in item.labels]
        assert not any(label.startswith("deploy-verify-") for label in labels)
    text = (tmp_path / "report.txt").read_text()
    # The emulator's ids of instances have the digits of the account's id, among others.
    secrets = rf"(?<!\d){ACCOUNT}(?!\d)|{deployment.token}"
    assert not re.search(secrets, text + done.stdout + done.stderr)
    alarms = deployment.aws.client("cloudwatch").describe_alarms()["MetricAlarms"]
    assert {alarm["StateValue"] for alarm in alarms} == {"INSUFFICIENT_DATA"}
