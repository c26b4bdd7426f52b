"""Steps of a cluster on Google Cloud, in addition to the common steps of all clouds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tests.end_to_end import cluster_steps
from tests.end_to_end.cluster_steps import POOL, pools_text
from tests.end_to_end.laptop import Laptop

if TYPE_CHECKING:
    from tests.emulators.deployment_gcp import GcpDeployment

# The bucket that trials' code may read, and the bucket and folder that the code may write.
PHOTOS, SCRATCH = "our-photos", "our-scratch/vision"
TYPE, FULL_ZONE, OTHER_ZONE = "g2-standard-4", "us-central1-a", "us-central1-b"
POOLS = pools_text(
    "gcp",
    f"""[
        {{instance_type: {TYPE}, zone: {FULL_ZONE}, market: spot, slots: 1}},
        {{instance_type: {TYPE}, zone: {OTHER_ZONE}, market: spot, slots: 1}}]""",
)


def create(
    deployment: GcpDeployment,
    person: Laptop,
    epochs: int,
    folder: Path,
    pool: str = POOL,
    batch_seconds: float = 0.0,
    settings: Sequence[str] = (),
) -> int:
    """Create a digits trial with the address of the storage emulator; return the experiment."""
    place = f"environment.environment_variables=[{variable(deployment)}]"
    return cluster_steps.create(person, epochs, folder, pool, batch_seconds, (place, *settings))


def variable(deployment: GcpDeployment) -> str:
    """Return the variable with the address of the store for a trial, which then needs a token."""
    return f"STORAGE_EMULATOR_HOST={deployment.storage}"
