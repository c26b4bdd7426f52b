"""A cluster on Cloud Run, as people use it: its functions are processes, called by the events of
Firestore's commits and by the clock, and its agent trains.

What Google checks and no emulator does, IAM and the signatures of URLs, is not tested here; nor are
machines, for the agent is started by hand.
"""

from pathlib import Path

from tests.emulators.cloud_run import CloudRunCluster
from tests.end_to_end.laptop import Laptop
from tests.end_to_end.tiny_model import write_model
from tests.patience import wait_until

DONE_SECONDS_MAX = 90.0


def test_a_search_runs_from_create_to_its_deletion(
    cluster: CloudRunCluster, person: Laptop, tmp_path: Path
) -> None:
    # Every event comes twice, and up to half a second late, each by its own chance.
    for trigger in cluster.events.triggers.values():
        trigger.lag_seconds, trigger.repeats = 0.5, 1
    variables = [f"STORAGE_EMULATOR_HOST={cluster.storage}"]
    config, model = write_model(tmp_path, environment={"environment_variables": variables})
    created = person.json("create", config, model)["id"]
    with cluster.client() as client:
        experiment = client.experiment(created)

        def is_over() -> bool:
            experiment.refresh()
            return experiment.state not in ("ACTIVE", "PAUSED")

        wait_until(is_over, DONE_SECONDS_MAX, "the search")
        assert experiment.state == "COMPLETED"
        assert [trial.state for trial in experiment.trials()] == ["COMPLETED"] * 2
        assert [len(list(trial.metrics("validation"))) for trial in experiment.trials()] == [1, 1]
        assert len(list(experiment.checkpoints())) == 2
    # The trials wrote with a token each, which is good for nothing else.
    assert len(cluster.tokens.issued) >= 2
    assert cluster.stored_checkpoints()
    person.run("experiment", "delete", created, "--yes")
    wait_until(lambda: not cluster.stored_checkpoints(), 60, "the end of the checkpoints")
    assert cluster.failures == []
    assert all(trigger.sent and not trigger.lost for trigger in cluster.events.triggers.values())
