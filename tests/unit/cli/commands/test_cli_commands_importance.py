"""`detcloud experiment importance`: a table with ranges, and notes on stderr."""

import json
from typing import Any

from tests.unit.cli.conftest import Detcloud
from tests.unit.client.fake_cluster import FakeCluster

ENOUGH: dict[str, Any] = {
    "metric": "loss",
    "smaller_is_better": True,
    "unit": "batches",
    "at": 900,
    "lengths": [{"length": 900, "trials": 120}],
    "trials": 120,
    "trials_left_out": 0,
    "trials_min": 20,
    "explained": 0.9,
    "interactions": 0.08,
    "note": "",
    "items": [
        {"name": "lr", "share": 0.714, "low": 0.65, "high": 0.78},
        {"name": "momentum", "share": 0.206, "low": 0.15, "high": 0.27},
    ],
}
FEW = {**ENOUGH, "trials": 3, "items": [], "interactions": None, "note": "Importance needs 20."}


def test_hyperparameters_are_rows_with_ranges(
    ended_cluster: FakeCluster, detcloud: Detcloud
) -> None:
    ended_cluster.importance = ENOUGH
    done = detcloud("experiment", "importance", "1", "--at", "900")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "loss (smaller is better) after 900 batches, 120 trials",
        " Hyperparameter | Importance | From | To",
        "----------------+------------+------+------",
        " lr             | 71 %       | 65 % | 78 %",
        " momentum       | 21 %       | 15 % | 27 %",
        "interactions of several hyperparameters: 8 %",
    ]
    assert ended_cluster.importance_query == {"at": "900"}


def test_forms_have_exact_shares(ended_cluster: FakeCluster, detcloud: Detcloud) -> None:
    ended_cluster.importance = ENOUGH
    done = detcloud("experiment", "importance", "1", "--metric", "loss", "--json")
    assert json.loads(done.out) == ENOUGH
    assert ended_cluster.importance_query == {"metric": "loss"}
    lines = detcloud("experiment", "importance", "1", "--csv").out.splitlines()
    assert lines[:2] == ["Hyperparameter,Importance,From,To", "lr,0.714,0.65,0.78"]


def test_too_few_trials_are_a_note(ended_cluster: FakeCluster, detcloud: Detcloud) -> None:
    ended_cluster.importance = FEW
    done = detcloud("experiment", "importance", "1")
    assert done.out == "loss (smaller is better) after 900 batches, 3 trials\n"
    assert done.err == "note: Importance needs 20.\n"
