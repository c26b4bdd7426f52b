"""Search previews over HTTP: equal to the command's, limited in time, with an estimate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from control_plane.config.__main__ import main
from control_plane.usecases import search_previews
from tests.unit.api.cluster import Cluster, limit_queries
from tests.unit.api.conftest import cluster

__all__ = ["cluster"]

CONFIG = """
entrypoint: python train.py
searcher: {name: SEARCHER, metric: loss, max_length: {batches: 10}, max_trials: 4OPTIONS}
hyperparameters:
  x: {type: double, minval: 0, maxval: 1}
reproducibility: {experiment_seed: 7}
"""
RANDOM = CONFIG.replace("SEARCHER", "random").replace("OPTIONS", "")
HALVING = CONFIG.replace("SEARCHER", "async_halving").replace("OPTIONS", ", num_rungs: 2")
PATH = "/search-previews"


def test_preview_equals_the_command_line_preview(
    cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "search.yaml"
    file.write_text(HALVING)
    assert main([str(file), "--json", "--preview"]) == 0
    expected = json.loads(capsys.readouterr().out)["preview"]
    answer = cluster.post(PATH, {"config": HALVING})
    assert answer.status == 200, answer.body
    assert answer.json == {**expected, "estimate": None, "estimate_missing": ""}
    assert cluster.get("/experiments").json["items"] == []


def test_estimate_simulates_the_given_slots(cluster: Cluster) -> None:
    body = {"config": RANDOM, "slots": 2, "seconds_per_unit": 3.0}
    answer = cluster.post(PATH, body)
    assert answer.status == 200, answer.body
    estimate = answer.json["estimate"]
    assert (estimate["trials"], estimate["units"], estimate["slots"]) == (4, 40.0, 2)
    # slot_use is the share of slot_seconds in the time of both slots.
    share = estimate["slot_seconds"] / (2 * estimate["makespan_seconds"])
    assert estimate["slot_use"] == pytest.approx(share, abs=1e-6)
    doubled = cluster.post(PATH, {**body, "seconds_per_unit": 6.0}).json["estimate"]
    assert doubled["slot_seconds"] == pytest.approx(2 * estimate["slot_seconds"], rel=1e-3)


def test_missing_estimate_has_a_reason(cluster: Cluster) -> None:
    config = RANDOM + "resources: {slots_per_trial: 4}\n"
    answer = cluster.post(PATH, {"config": config, "slots": 2})
    # The pool has no slots yet, for which a submission is warned but not refused.
    assert answer.status == 200, answer.body
    assert answer.json["estimate"] is None
    assert "but the simulated cluster has 2" in answer.json["estimate_missing"]
    cluster = limit_queries(cluster, estimate_seconds_max=-1.0)
    many = RANDOM.replace("max_trials: 4", "max_trials: 200")
    answer = cluster.post(PATH, {"config": many, "slots": 2})
    assert (answer.json["trials"], answer.json["estimate"]) == (200, None)
    assert "use `detcloud simulate`" in answer.json["estimate_missing"]


def test_rejects_invalid_or_too_large_search(cluster: Cluster) -> None:
    cluster = limit_queries(cluster, preview_seconds_max=-1.0)

    def refusal_of(config: str) -> str:
        answer = cluster.post(PATH, {"config": config})
        assert answer.status == 422, answer.body
        [detail] = answer.json["error"]["details"]
        return f"{detail['path']} {detail['message']}"

    assert refusal_of(RANDOM.replace("max_trials: 4", "max_trials: 0")).startswith(
        "searcher.max_tr"
    )
    custom = RANDOM.replace("random", "custom").replace(
        "max_length: {batches: 10}, max_trials: 4", "unit: batches"
    )
    assert "cannot be previewed" in refusal_of(custom)
    many = RANDOM.replace("max_trials: 4", f"max_trials: {search_previews.TRIALS_MAX + 1}")
    assert f"at most {search_previews.TRIALS_MAX}" in refusal_of(many)
    long = HALVING.replace("max_trials: 4", "max_trials: 5000")
    assert "takes more than -1 s to preview" in refusal_of(long)


def test_one_preview_is_computed_at_a_time(cluster: Cluster) -> None:
    with search_previews.hold_computing_lock():
        answer = cluster.post(PATH, {"config": RANDOM})
        assert (answer.status, answer.json["error"]["code"]) == (503, "unavailable")
    assert cluster.post(PATH, {"config": RANDOM}).status == 200
