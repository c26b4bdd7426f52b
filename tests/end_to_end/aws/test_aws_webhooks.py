"""Webhooks of a deployed cluster: the stream delivers at once, and the tick repeats."""

from pathlib import Path

import pytest

from tests.emulators.deployment import Deployment
from tests.end_to_end.aws.cluster import POOLS
from tests.end_to_end.laptop import Laptop
from tests.patience import wait_until
from tests.unit.webhooks.receiver import run_receiver

pytestmark = pytest.mark.end_to_end


@pytest.mark.nightly
def test_event_is_delivered_by_the_functions(
    deployment: Deployment, person: Laptop, tmp_path: Path
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(f"{POOLS}\nwebhooks: {{allowed_private_hosts: [127.0.0.1]}}\n")
    person.run("cluster", "apply", file)
    with run_receiver(lambda number: 200 if number else 500) as receiver:
        person.run("webhook", "create", "hook", receiver.url)
        # The first answer is a refusal.
        tested = person.json("webhook", "test", "hook", code=1)
        assert (tested["state"], tested["status"]) == ("waiting", 500)
        wait_until(lambda: len(receiver.requests) == 2, 180, "the attempt of a later tick")
    first, again = receiver.requests
    assert first.headers["webhook-id"] == again.headers["webhook-id"]
    (delivery,) = person.json("webhook", "deliveries", "hook")
    assert (delivery["state"], delivery["attempts"]) == ("delivered", 2)
    person.run("webhook", "delete", "hook")
