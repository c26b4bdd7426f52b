"""A cluster on own machines with a second pool on AWS, to which a waiting job overflows.

The remote account is created by the printed script. The server has only the keys of an IAM user,
who may assume the launcher's role. EC2 accepts only sessions of this role. The machine boots from
its user data, and joins by a proof of its identity.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require

for package in ("pulumi_aws", "boto3", "moto"):
    require(package)

from botocore.exceptions import ClientError  # noqa: E402

from tests.emulators.aws_lab import AwsLab, aws_lab  # noqa: E402
from tests.emulators.aws_remote import make_remote_network, run_trust_script  # noqa: E402
from tests.emulators.ministack import ACCOUNT, REGION, Ministack  # noqa: E402
from tests.emulators.server import free_port  # noqa: E402
from tests.end_to_end.laptop import Laptop  # noqa: E402
from tests.end_to_end.overflow import (  # noqa: E402
    CLOUD_POOL,
    check_overflow,
    pools_with_cloud,
    remove_clouds,
)
from tests.end_to_end.two_clouds import logs_told  # noqa: E402
from tests.patience import wait_until  # noqa: E402

pytestmark = [pytest.mark.end_to_end, pytest.mark.nightly]

NAME = "lab"
LAUNCHER = f"arn:aws:iam::{ACCOUNT}:role/detcloud-{NAME}-launcher"
OFFERING = "{instance_type: g5.xlarge, market: spot, slots: 1}"


@pytest.fixture
def lab(strict_aws: Ministack, tmp_path: Path) -> Iterator[tuple[AwsLab, dict[str, Any]]]:
    """Yield the account, and its description without a principal."""
    network = make_remote_network(strict_aws, f"{NAME}-machines")
    described = {
        "account": ACCOUNT,
        "region": REGION,
        "subnets": network["subnets"],
        "security_group": network["securityGroup"],
    }
    with aws_lab(tmp_path / "ec2", strict_aws, NAME, LAUNCHER, network["subnets"]) as account:
        yield account, described


def test_job_overflows_from_own_machine_to_aws_and_leaves_nothing(
    lab: tuple[AwsLab, dict[str, Any]], tmp_path: Path
) -> None:
    account, described = lab
    aws, port = account.aws, free_port()
    aws.client("s3").create_bucket(Bucket="lab-checkpoints")
    clouds, pools = tmp_path / "clouds.yaml", tmp_path / "cluster.yaml"
    remote = {**described, "principal": account.user}
    url = f"http://127.0.0.1:{port}"
    clouds.write_text(json.dumps({"name": NAME, "url": url, "aws": remote}))
    bucket = {"type": "s3", "bucket": "lab-checkpoints", "endpoint_url": aws.url}
    keys = {"access_key": aws.key, "secret_key": aws.secret}
    pools.write_text(pools_with_cloud("aws", OFFERING, {**bucket, **keys}))
    owner = Laptop(tmp_path / "home", **account.environment)
    try:
        # The tag of the instances is the cluster's id, which exists after the first start.
        owner.run("up", "--slots", 1, "--port", port)
        script = owner.run("deploy", "trust", "local", "--clouds", clouds).stdout
        run_trust_script(tmp_path / "script", aws.client, script)
        owner.run("down")
        owner.run("up", "--slots", 1, "--port", port, "--clouds", clouds, "--config", pools)
        with logs_told(account.machines):
            check_overflow(owner, tmp_path, lambda: len(account.region.machines))
        machine = next(iter(account.region.machines.values()))
        assert machine.tags["detcloud-cluster"] == owner.json("master", "info")["cluster_id"]
        assert machine.tags["detcloud-pool"] == CLOUD_POOL
        assert set(account.roles.values()) == {LAUNCHER}
        # The script has no secret, and the code came by a proof.
        assert "code_place=''" in machine.script.decode()
        assert account.environment["AWS_SECRET_ACCESS_KEY"] not in machine.script.decode()
        wait_until(lambda: not account.billed_machines(), 60, "an empty pool")
        removal = owner.run("deploy", "trust", "local", "--clouds", clouds, "--remove").stdout
        remove_clouds(owner, tmp_path, port)
        run_trust_script(tmp_path / "script", account.clients, removal)
        assert account.region.templates == {}
        with pytest.raises(ClientError):
            aws.client("iam").get_role(RoleName=LAUNCHER.rpartition("/")[2])
    finally:
        assert owner.end() == []
