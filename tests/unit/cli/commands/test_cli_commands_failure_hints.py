"""Hints after an experiment that failed or reported no metric."""

from tests.unit.cli.conftest import Detcloud
from tests.unit.client.fake_cluster import FakeCluster

WAIT = ("wait", "1", "--polling-interval", "0.001")
MESSAGE = "exit code 1; the end of its log:\nTraceback\n  line 3\nValueError: no"


def fail_experiment(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.ending = "ERROR"
    fake.add_experiment({"name": "digits"}, {})
    assert detcloud(*WAIT).code == 1
    fake.experiments[0].update(state="ERROR", message=MESSAGE)


def test_hint_names_the_log_of_a_trial_with_output(fake: FakeCluster, detcloud: Detcloud) -> None:
    fail_experiment(fake, detcloud)
    more = " (failed too: 1 trial)"
    assert detcloud("describe", "1").err == (
        f"hint: `detcloud trial logs 1` shows why it failed{more}\n"
    )
    fake.logs[1] = ""
    assert detcloud("describe", "1").err == (
        f"hint: `detcloud trial describe 1` shows why it failed{more}\n"
    )
    assert detcloud("trial", "describe", "1").err == ""
    assert "trial logs 2" in detcloud("trial", "describe", "2").err


def test_hint_names_the_description_for_a_cause_outside_the_process(
    fake: FakeCluster, detcloud: Detcloud
) -> None:
    fail_experiment(fake, detcloud)
    fake.logs[1] = "step 100\n"
    for trial in fake.trials:
        trial.update(state="ERROR", message="the parent has no checkpoint to copy")
    err = detcloud("describe", "1").err
    assert err.startswith("hint: `detcloud trial describe 1` shows why it failed")
    assert detcloud("trial", "describe", "1").err == ""


def test_description_keeps_the_lines_of_a_message(fake: FakeCluster, detcloud: Detcloud) -> None:
    fail_experiment(fake, detcloud)
    lines = detcloud("describe", "1").out.splitlines()
    place = next(n for n, line in enumerate(lines) if line.startswith("Message"))
    margin = len("Preferred pools  ")
    assert [line[margin:] for line in lines[place:]] == MESSAGE.splitlines()
    assert "ValueError: no\n" in detcloud(*WAIT).err


def test_search_without_metrics_has_a_hint(ended_cluster: FakeCluster, detcloud: Detcloud) -> None:
    assert detcloud(*WAIT).err == ""
    ended_cluster.experiments[0].update(best_metric=None, best_trial_id=None)
    done = detcloud(*WAIT)
    assert done.code == 0
    assert done.err == (
        "hint: no trial reported a finite validation_loss; "
        "`detcloud history 1` shows how each trial ended\n"
    )
