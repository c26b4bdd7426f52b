"""Steps with webhooks that the deployed clusters of all clouds have in common."""

from pathlib import Path

from tests.end_to_end.laptop import Laptop
from tests.patience import wait_until
from tests.unit.webhooks.receiver import run_receiver


def deliver_to_moved_receiver(person: Laptop, pools: str, folder: Path) -> None:
    """Create a webhook whose receiver refuses, edit the webhook, and check the later delivery.

    The event of a commit is delivered at once, and a later tick repeats the delivery. The
    configuration of the cluster is `pools` again at the end.
    """
    file = folder / "cluster.yaml"
    file.write_text(f"{pools}\nwebhooks: {{allowed_private_hosts: [127.0.0.1]}}\n")
    person.run("cluster", "apply", file)
    with run_receiver(lambda number: 500) as broken, run_receiver() as repaired:
        person.run("webhook", "create", "hook", broken.url)
        tested = person.json("webhook", "test", "hook", code=1)
        assert (tested["state"], tested["status"]) == ("waiting", 500)
        person.run("webhook", "edit", "hook", "--address", repaired.url)
        wait_until(lambda: bool(repaired.requests), 180, "the attempt of a later tick")
    (again,) = repaired.requests
    assert again.headers["webhook-id"] == broken.requests[0].headers["webhook-id"]

    def deliveries() -> list[tuple[str, int]]:
        found = person.json("webhook", "deliveries", "hook")
        return [(delivery["state"], delivery["attempts"]) for delivery in found]

    attempts = len(broken.requests) + 1
    wait_until(lambda: deliveries() == [("delivered", attempts)], 60, "the record of the delivery")
    person.run("webhook", "delete", "hook")
    file.write_text(pools)
    person.run("cluster", "apply", file)
