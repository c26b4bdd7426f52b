"""`detcloud experiment fork`: changes, expected time and cost, confirmation; and families."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from detcloud.client import Client
from tests.unit.cli.conftest import Detcloud
from tests.unit.client.fake_cluster import TOKEN, FakeCluster

PACE = {
    "unit": "batches",
    "slots_per_trial": 1,
    "trials": 2,
    "units": 400.0,
    "cost": 2.0,
    "seconds_per_unit": 0.5,
    "cost_per_unit": 0.005,
    "missing": "",
}
DIFF = """\
--- experiment 1
+++ fork
@@ -5,4 +5,5 @@
   metric: loss
   max_steps: 4
 hyperparameters:
-  lr: 0.1
+  lr: 0.01
+max_restarts: 2
"""
# 400 batches at 0.5 s on 2 slots, and at $0.005.
ESTIMATE = """\
expected: 2 trials, 400 batches in all; about 100 s on 2 slots; about $2.00
measured in experiment 1: 0.5 s and $0.005 per batch
"""
TREE = {
    "name": "digits",
    "entrypoint": "train.py",
    "searcher": {"name": "single", "metric": "loss", "max_steps": 4},
    "hyperparameters": {"lr": 0.1},
}
OVERRIDES = ("--config", "hyperparameters.lr=0.01", "--config", "max_restarts=2")


@pytest.fixture
def original(fake: FakeCluster) -> FakeCluster:
    """Return a cluster with experiment 1, whose pace is measured."""
    fake.pace = PACE
    fake.objects["code"] = b"archive"
    fake.add_experiment(TREE, {"model_code": "code"})
    return fake


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Make stdin a terminal; return the list of the lines to read."""
    answers: list[str] = []

    class Terminal:
        def isatty(self) -> bool:
            return True

        def readline(self) -> str:
            return answers.pop(0)

    monkeypatch.setattr(sys, "stdin", Terminal())
    return answers


def test_fork_shows_changes_and_expectation(original: FakeCluster, detcloud: Detcloud) -> None:
    done = detcloud("experiment", "fork", "1", *OVERRIDES)
    assert (done.code, done.out) == (0, "Created experiment 2 from experiment 1\n")
    assert done.err.startswith(DIFF + ESTIMATE)
    first, fork = original.experiments
    assert (fork["code_sha256"], fork["forked_from"]) == (first["code_sha256"], 1)
    assert fork["config"] == {**TREE, "hyperparameters": {"lr": 0.01}, "max_restarts": 2}


def test_diff_creates_nothing(original: FakeCluster, detcloud: Detcloud) -> None:
    done = detcloud("experiment", "fork", "1", "--diff", *OVERRIDES)
    assert (done.code, done.out, done.err) == (0, DIFF + ESTIMATE, "")
    shown = json.loads(detcloud("experiment", "fork", "1", "--diff", "--json", *OVERRIDES).out)
    assert (shown["experiment_id"], shown["diff"]) == (1, DIFF)
    assert shown["estimate"]["cost"] == 2.0
    assert shown["estimate"]["seconds"] == pytest.approx(100.0)
    assert shown["after"]["max_restarts"] == 2
    assert len(original.experiments) == 1


def test_unchanged_configuration_is_named(original: FakeCluster, detcloud: Detcloud) -> None:
    done = detcloud("experiment", "fork", "1", "--diff")
    assert done.out == "the configuration is unchanged\n" + ESTIMATE


@pytest.mark.parametrize(("answer", "created"), [("y\n", 2), ("n\n", 1), ("", 1)])
def test_terminal_is_asked(
    original: FakeCluster, detcloud: Detcloud, terminal: list[str], answer: str, created: int
) -> None:
    terminal.append(answer)
    done = detcloud("experiment", "fork", "1", *OVERRIDES)
    assert "Fork experiment 1? [y/N] " in done.err
    assert (done.code, len(original.experiments)) == (2 - created, created)
    assert ("nothing was created" in done.err) == (created == 1)


def test_yes_is_not_asked(original: FakeCluster, detcloud: Detcloud, terminal: list[str]) -> None:
    done = detcloud("experiment", "fork", "1", "--yes", "--json")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out)["id"] == 2
    # Neither the changes nor the pace are requested for JSON without a question.
    assert ("GET", "/api/v1/experiments/1/pace") not in original.requests
    assert terminal == []


def test_other_code_is_uploaded(original: FakeCluster, detcloud: Detcloud, model_dir: Path) -> None:
    done = detcloud("experiment", "fork", "1", "--model-dir", str(model_dir))
    assert f"code: {model_dir}\n" in done.err
    fork = original.experiments[1]
    assert fork["code_sha256"] != "code"
    assert fork["code_sha256"] in original.objects


def test_missing_code_is_refused_before_any_request(
    original: FakeCluster, detcloud: Detcloud
) -> None:
    done = detcloud("experiment", "fork", "1", "--model-dir", "nowhere")
    expected = "--model-dir: nowhere does not exist; expected a folder or file with training code"
    assert (done.code, expected in done.err) == (1, True)
    assert original.requests == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--from-trial", "7"), {"source_trial_id": 7, "source_checkpoint_uuid": None}),
        (("--from-checkpoint", "1e5"), {"source_trial_id": None, "source_checkpoint_uuid": "1e5"}),
    ],
)
def test_weights_come_from_a_trial_or_a_checkpoint(
    original: FakeCluster, detcloud: Detcloud, words: tuple[str, ...], expected: dict[str, Any]
) -> None:
    assert detcloud("experiment", "fork", "1", *words).code == 0
    searcher = original.experiments[1]["config"]["searcher"]
    assert {name: searcher[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("pace", "lines"),
    [
        (
            {**PACE, "seconds_per_unit": None, "cost_per_unit": None, "missing": "no trial ran"},
            [
                "expected: 2 trials, 400 batches in all",
                "note: the pace of experiment 1 is not known: no trial ran",
            ],
        ),
        (
            {**PACE, "unit": "epochs"},
            [
                "expected: 2 trials, 400 batches in all",
                "measured in experiment 1: 0.5 s and $0.005 per epoch",
                "note: time and cost are not known: experiment 1 counts epochs, the fork counts "
                "batches",
            ],
        ),
        (
            {**PACE, "cost": None, "cost_per_unit": None, "slots_per_trial": 4},
            [
                "expected: 2 trials, 400 batches in all; about 100 s on 2 slots",
                "measured in experiment 1: 0.5 s per batch",
                "note: experiment 1 was measured with 4 slots per trial, the fork has 1",
            ],
        ),
        (None, []),
    ],
    ids=["unknown", "other unit", "other slots", "older cluster"],
)
def test_unknown_time_and_cost_have_reasons(
    original: FakeCluster, detcloud: Detcloud, pace: dict[str, Any] | None, lines: list[str]
) -> None:
    original.pace = pace
    done = detcloud("experiment", "fork", "1", "--diff")
    assert done.out.splitlines() == ["the configuration is unchanged", *lines]


def test_refused_configuration_names_the_original(
    original: FakeCluster, detcloud: Detcloud
) -> None:
    done = detcloud("experiment", "fork", "1", "--config", "labelz=x")
    assert done.code == 3
    assert "experiment 1" in done.err
    assert "labelz" in done.err


def test_older_clusters_get_no_field_that_they_refuse(
    original: FakeCluster, detcloud: Detcloud
) -> None:
    first = original.experiments[0]
    del first["submitted_config"]
    first["config"] = {**TREE, "max_restarts": 5}
    done = detcloud("experiment", "fork", "1", "--json")
    assert done.code == 0, done.err
    assert "forked_from" not in original.experiments[1]["asked"]
    assert original.experiments[1]["config"]["max_restarts"] == 5


def test_client_forks_with_other_code(original: FakeCluster, model_dir: Path) -> None:
    with Client(original.url, TOKEN) as client:
        experiment = client.experiment(1)
        assert experiment.submitted_config == TREE
        preview = experiment.preview_fork(["hyperparameters.lr=0.01", "max_restarts=2"])
        assert preview.diff() == DIFF
        estimate = experiment.estimate_fork(preview)
        assert (estimate.cost, estimate.notes) == (2.0, [])
        assert estimate.seconds == pytest.approx(100.0)
        fork = experiment.fork(["max_restarts=2"], model_dir=model_dir, paused=True)
        assert (fork.id, fork.forked_from, fork.state) == (2, 1, "PAUSED")
        assert fork.code_sha256 != experiment.code_sha256


def member(number: int, forked_from: int | None = None, **fields: Any) -> dict[str, Any]:
    return {
        "id": number,
        "name": f"n{number}",
        "user": "ada",
        "state": "COMPLETED",
        "condition": "finished",
        "archived": False,
        "metric": "loss",
        "smaller_is_better": True,
        "best_metric": number / 8,
        "created_ms": 0,
        "forked_from": forked_from,
        "differences": None,
        "differences_left_out": 0,
        "has_other_code": None,
        **fields,
    }


def test_description_has_the_family(original: FakeCluster, detcloud: Detcloud) -> None:
    change = {"path": "hyperparameters.lr", "before": 0.1, "after": None}
    forks = [
        member(1, 3, differences=[change], has_other_code=True, differences_left_out=2),
        member(4, 1, differences=[], has_other_code=False),
    ]
    original.family = {"members": [member(3), *forks], "is_cut": False}
    done = detcloud("experiment", "describe", "1")
    lines = [" ".join(line.split()) for line in done.out.partition("\nFamily\n")[2].splitlines()]
    assert lines[2:] == [
        "3 | n3 | finished | loss | 0.375 | N/A",
        "└ 1 * | n1 | finished | loss | 0.125 | lr: 0.1 to unset, 2 more, other code",
        "└ 4 | n4 | finished | loss | 0.5 | nothing",
    ]
    shown = json.loads(detcloud("experiment", "describe", "1", "--json").out)
    assert [one["id"] for one in shown["family"]["members"]] == [3, 1, 4]


def test_description_without_family_has_no_table(original: FakeCluster, detcloud: Detcloud) -> None:
    original.family = {"members": [member(1)], "is_cut": False}
    assert "Family" not in detcloud("experiment", "describe", "1").out
