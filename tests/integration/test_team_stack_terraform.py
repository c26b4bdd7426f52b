"""A team's stack in Terraform's form: checks by the real provider, and calls to AWS."""

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.aws.program import run
from infra.aws.terraform import PROVIDER
from infra.terraform.export import FILE, export
from tests.emulators.ministack import Ministack, ministack
from tests.emulators.server import missing, require_program
from tests.integration.team_stack import team_config
from tests.patience import ANSWER_SECONDS_MAX, PATIENCE
from tests.unit.infra.graphs import BANK, files

MIRRORS = (Path("/opt/tf-plugins"), Path("/usr/share/terraform/plugins"))
SERVICES = (
    "apigatewayv2 budgets cloudwatch cloudwatchlogs dynamodb ec2 events iam lambda s3 sns sqs sts"
)
# The provider would wait a minute for a detail that the emulator does not return.
TOO_SLOW = "aws_s3_bucket_lifecycle_configuration"
# The emulator forgets an alarm's settings and a rule's tags.
FORGOTTEN = {"aws_cloudwatch_metric_alarm", "aws_vpc_security_group_egress_rule"}


class Terraform:
    """Terraform in a folder, with the providers that the machine has."""

    def __init__(self, folder: Path) -> None:
        self._program = require_program("terraform", remedy="see developer.hashicorp.com")
        self.folder = folder
        rc = folder / "terraform.rc"
        mirrors = [
            f'filesystem_mirror {{ path = "{mirror}" }}' for mirror in MIRRORS if mirror.is_dir()
        ]
        if not mirrors:
            missing("terraform", f"Terraform's provider for AWS is in none of {MIRRORS}")
        rc.write_text("provider_installation {\n" + "\n".join(mirrors) + "\n}\n")
        self._environment = {**os.environ, "TF_CLI_CONFIG_FILE": str(rc)}

    def __call__(self, *words: str) -> str:
        """Run Terraform and return the output; fail the test if Terraform fails."""
        done = subprocess.run(
            [self._program, *words, "-no-color"],
            cwd=self.folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=300 * PATIENCE,
        )
        assert done.returncode == 0, f"terraform {words}:\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture
def account(tmp_path: Path) -> Iterator[Ministack]:
    """Yield an account for this test alone.

    A stack of Terraform uses names that other tests use too.
    """
    with ministack(tmp_path) as running:
        yield running


@pytest.mark.nightly
def test_terraform_creates_the_same_stack(tmp_path: Path, account: Ministack) -> None:
    terraform = Terraform(tmp_path)
    # First all that a company may ask for, in names alone.
    export(run, PROVIDER, "bank", {**BANK, **files(tmp_path / "given")}, tmp_path)
    terraform("init")
    terraform("validate")
    config = {**team_config(tmp_path), "detcloud:monthlyBudget": "50"}
    document = export(run, PROVIDER, "vision", config, tmp_path)
    terraform("validate")
    del document["resource"][TOO_SLOW]
    (tmp_path / FILE).write_text(json.dumps(document))
    _use_emulator(tmp_path, account)
    terraform("apply", "-auto-approve", "-parallelism=20")
    _check_health(account, tmp_path)
    lines = map(json.loads, terraform("plan", "-json").splitlines())
    changes = [line["change"]["resource"] for line in lines if line["type"] == "planned_change"]
    assert {change["resource_type"] for change in changes} <= FORGOTTEN


def _use_emulator(folder: Path, account: Ministack) -> None:
    """Direct Terraform to the emulator by an override, so that the stack stays unchanged."""
    provider: dict[str, Any] = {
        "access_key": "test",
        "secret_key": "test",
        "s3_use_path_style": True,
        "skip_credentials_validation": True,
        "skip_metadata_api_check": True,
        "endpoints": {name: account.url for name in SERVICES.split()},
    }
    override = folder / "emulator_override.tf.json"
    override.write_text(json.dumps({"provider": {"aws": provider}}))


def _check_health(account: Ministack, folder: Path) -> None:
    state = json.loads((folder / "terraform.tfstate").read_text())
    [api] = [
        resource for resource in state["resources"] if resource["type"] == "aws_apigatewayv2_api"
    ]
    name = api["instances"][0]["attributes"]["id"]
    url = f"{account.url}/_aws/execute-api/{name}/$default/health"
    with urllib.request.urlopen(url, timeout=ANSWER_SECONDS_MAX) as answer:
        assert answer.read().startswith(b"detcloud-vision")
