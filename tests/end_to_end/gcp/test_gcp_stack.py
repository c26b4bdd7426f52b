"""A team's stack on the emulators of Google Cloud: its functions take what it gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.end_to_end.cluster_steps import DESK, IMPATIENT, POOL

if TYPE_CHECKING:
    from tests.emulators.deployment_gcp import GcpDeployment


def test_the_first_minute_puts_the_configuration_in_force(deployment: GcpDeployment) -> None:
    with deployment.client() as client:
        pools = {resource_pool.name for resource_pool in client.resource_pools()}
    assert pools == {POOL, IMPATIENT, DESK}


def test_the_bucket_has_the_configuration_and_the_sources(deployment: GcpDeployment) -> None:
    folders = {name.partition("/")[0] for name in deployment.stored_objects("objects")}
    assert {"config", "function-sources"} <= folders


def test_parts_that_no_emulator_has_are_noted(deployment: GcpDeployment) -> None:
    assert {"compute/network", "projects/iAMMember", "firestore/index"} <= deployment.noted
