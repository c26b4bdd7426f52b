"""A team's stack on the emulators of Google Cloud: functions accept the stack's outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.end_to_end.cluster_steps import DESK, IMPATIENT, POOL

if TYPE_CHECKING:
    from tests.emulators.deployment_gcp import GcpDeployment


def test_first_minute_applies_the_configuration(deployment: GcpDeployment) -> None:
    with deployment.client() as client:
        pools = {resource_pool.name for resource_pool in client.resource_pools()}
    assert pools == {POOL, IMPATIENT, DESK}


def test_bucket_has_the_configuration_and_the_sources(deployment: GcpDeployment) -> None:
    folders = {name.partition("/")[0] for name in deployment.stored_objects("objects")}
    assert {"config", "function-sources"} <= folders


def test_resources_without_an_emulator_are_recorded(deployment: GcpDeployment) -> None:
    assert {"compute/network", "projects/iAMMember", "firestore/index"} <= deployment.noted
