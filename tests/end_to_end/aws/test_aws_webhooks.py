"""Webhooks of a deployed cluster: the stream delivers at once, and the tick repeats."""

from pathlib import Path

import pytest

from tests.emulators.deployment import Deployment
from tests.end_to_end.aws.cluster import POOLS
from tests.end_to_end.laptop import Laptop
from tests.end_to_end.webhook_steps import deliver_to_moved_receiver

pytestmark = pytest.mark.end_to_end


@pytest.mark.nightly
def test_event_is_delivered_by_the_functions(
    deployment: Deployment, person: Laptop, tmp_path: Path
) -> None:
    deliver_to_moved_receiver(person, POOLS, tmp_path)
