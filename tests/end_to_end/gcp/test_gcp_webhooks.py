"""Webhooks of a cluster on Google Cloud: an event of the commit delivers, and the tick repeats."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.end_to_end.gcp.cluster import POOLS
from tests.end_to_end.laptop import Laptop
from tests.end_to_end.webhook_steps import deliver_to_moved_receiver

if TYPE_CHECKING:
    from tests.emulators.deployment_gcp import GcpDeployment


@pytest.mark.nightly
def test_event_is_delivered_by_the_functions(
    deployment: GcpDeployment, person: Laptop, tmp_path: Path
) -> None:
    deliver_to_moved_receiver(person, POOLS, tmp_path)
