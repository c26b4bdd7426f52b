"""A cluster on own machines with a second pool on Google Cloud, to which a waiting job overflows.

The server has only the key of a service account, which may act as the launcher's account. Compute
Engine accepts only tokens of the launcher. The machine boots from its startup script, and joins by
a token that Google signed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import require

for package in ("pulumi_gcp", "cryptography", "google.auth", "boto3"):
    require(package)

from tests.emulators.google_lab import google_lab  # noqa: E402
from tests.emulators.seaweedfs import SeaweedFs  # noqa: E402
from tests.emulators.server import free_port  # noqa: E402
from tests.end_to_end.laptop import Laptop  # noqa: E402
from tests.end_to_end.overflow import check_overflow, pools_with_cloud, remove_clouds  # noqa: E402
from tests.end_to_end.test_s3 import storage  # noqa: E402
from tests.end_to_end.two_clouds import logs_told  # noqa: E402
from tests.patience import wait_until  # noqa: E402

pytestmark = [pytest.mark.end_to_end, pytest.mark.nightly]

PROJECT, NAME, REGION = "tests-1", "lab", "us-central1"
LAUNCHER = f"dc-{NAME}-launch@{PROJECT}.iam.gserviceaccount.com"
OFFERING = "{instance_type: g2-standard-4, market: spot, slots: 1}"


def test_job_overflows_from_own_machine_to_google_cloud_and_leaves_nothing(
    s3: SeaweedFs, tmp_path: Path
) -> None:
    port, clouds, pools = free_port(), tmp_path / "clouds.yaml", tmp_path / "cluster.yaml"
    pools.write_text(pools_with_cloud("gcp", OFFERING, storage(s3.bucket("lab"))))
    with google_lab(tmp_path / "gce", PROJECT, LAUNCHER) as account:
        described = {
            "name": NAME,
            "url": f"http://127.0.0.1:{port}",
            "gcp": {
                "project": PROJECT,
                "region": REGION,
                "principal": f"serviceAccount:{account.own}",
            },
        }
        clouds.write_text(json.dumps(described))
        owner, project = Laptop(tmp_path / "home", **account.environment), account.project
        try:
            words = ("--slots", 1, "--port", port, "--clouds", clouds, "--config", pools)
            owner.run("up", *words)
            with logs_told(account.machines):
                check_overflow(owner, tmp_path, lambda: len(project.machines))
            machine = next(iter(project.machines.values()))
            assert machine.name.startswith(f"detcloud-{NAME}--vm-")
            [service_account] = machine.properties["serviceAccounts"]
            assert service_account["email"] == f"dc-{NAME}-vm@{PROJECT}.iam.gserviceaccount.com"
            assert {"own", "account"} == set(account.tokens.given)
            assert "code_place=''" in machine.metadata["startup-script"]
            wait_until(lambda: not project.billed_machines(), 60, "an empty pool")
            remove_clouds(owner, tmp_path, port)
        finally:
            assert owner.end() == []
