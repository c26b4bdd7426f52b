"""`python -m control_plane.simulation`: every searcher, and what it says of what it cannot do."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from control_plane.simulation.__main__ import main

STEPS: dict[str, dict[str, Any]] = {
    "single": {"max_steps": 4},
    "random": {"max_steps": 4, "max_trials": 5},
    "grid": {"max_steps": 4},
    "sync_halving": {"num_rungs": 2, "target_trial_steps": 4, "step_budget": 40},
    "async_halving": {"num_rungs": 2, "target_trial_steps": 4, "max_trials": 5},
    "adaptive": {"max_rungs": 2, "target_trial_steps": 8, "step_budget": 80},
    "adaptive_simple": {"max_rungs": 2, "max_steps": 4, "max_trials": 5},
    "adaptive_asha": {"max_rungs": 2, "target_trial_steps": 4, "max_trials": 5},
}
LENGTHS: dict[str, dict[str, Any]] = {
    "single": {"max_length": {"batches": 4}},
    "random": {"max_length": {"records": 256}, "max_trials": 5, "max_concurrent_trials": 2},
    "grid": {"max_length": {"epochs": 2}},
    "bayesian": {
        "max_length": {"batches": 4},
        "max_trials": 6,
        "startup_trials": 2,
        "max_concurrent_trials": 1,
    },
    "pbt": {
        "population_size": 4,
        "num_rounds": 3,
        "length_per_round": {"batches": 5},
        "replace_function": {"truncate_fraction": 0.25},
        "explore_function": {"resample_probability": 0.2, "perturb_factor": 0.2},
    },
    "async_halving": {"num_rungs": 2, "max_length": {"epochs": 8}, "max_trials": 5},
    "adaptive_asha": {"max_rungs": 2, "max_length": {"batches": 8}, "max_trials": 5},
}
CASES = [(True, name) for name in STEPS] + [(False, name) for name in LENGTHS]


def config(tmp_path: Path, searcher: dict[str, Any], **changed: Any) -> str:
    length = {"type": "int", "minval": 1, "maxval": 5, "count": 3}
    tree = {
        "entrypoint": "model_def:MyTrial",
        "hyperparameters": {"global_batch_size": 64, "n": length},
        "searcher": {"metric": "loss", **searcher},
        "reproducibility": {"experiment_seed": 3},
        **changed,
    }
    if searcher["name"] == "single":
        tree["hyperparameters"] = {"global_batch_size": 64}
    path = tmp_path / "search.yaml"
    path.write_text(yaml.safe_dump(tree))
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(words)
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert report["ok"] is (code == 0)
    return code, report


@pytest.mark.parametrize(("steps", "name"), CASES)
def test_every_searcher_can_be_simulated(
    steps: bool, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = (STEPS if steps else LENGTHS)[name]
    other = {"batches_per_step": 10} if steps else {"records_per_epoch": 640}
    path = config(tmp_path, {"name": name, **fields}, **other)
    code, report = run(capsys, path, "--slots", "2")
    assert code == 0
    found = report["simulation"]
    assert found["state"] == "COMPLETED"
    assert found["curves"] == {"kind": "synthetic"}
    assert found["best"][-1][1] == found["best_metric"]
    assert 0 < found["slot_use"] <= 1


def test_the_outcome_is_the_same_byte_for_byte(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(tmp_path, {"name": "adaptive_asha", **LENGTHS["adaptive_asha"]})
    texts = []
    for seed in (5, 5, 6):
        found = run(capsys, path, "--slots", "3", "--seed", str(seed))[1]["simulation"]
        del found["wall_seconds"]
        texts.append(json.dumps(found))
    assert texts[0] == texts[1] != texts[2]


def test_periods_of_validation_are_the_configurations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(tmp_path, {"name": "single", "max_length": {"batches": 10}})
    alone = run(capsys, path, "--slots", "1")[1]["simulation"]
    period = "--config=min_validation_period.batches=4"
    found = run(capsys, path, "--slots", "1", period)[1]["simulation"]
    # The first validation is at the end, or after 4 of 10 batches.
    assert alone["best"][0][0] == alone["makespan_seconds"] == found["makespan_seconds"]
    assert found["best"][0][0] == pytest.approx(0.4 * alone["makespan_seconds"], abs=0.001)


def test_a_record_is_followed_at_its_speed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    curves = tmp_path / "curves.json"
    trials = [{"hparams": {"n": 1}, "seconds_per_batch": 1.0, "points": [[5, 0.5], [8, 0.25]]}]
    curves.write_text(json.dumps({"version": 1, "metric": "loss", "trials": trials}))
    path = config(tmp_path, {"name": "random", "max_length": {"batches": 10}, "max_trials": 4})
    found = run(capsys, path, "--slots", "2", "--curves", str(curves))[1]["simulation"]
    # 4 trials of 10 batches at 1 s on 2 slots take 20 s; 2 of their 10 batches are past the record.
    assert found["makespan_seconds"] == 20
    assert (found["batches"], found["units"], found["slot_use"]) == (40, 40, 1)
    assert found["best"] == [[10, 0.25]]
    assert found["curves"] | {"exact": 0} == {
        "kind": "recorded",
        "trials": 1,
        "followed": 1,
        "exact": 0,
        "batches_beyond": 8,
        "share_beyond": 0.2,
    }


def problem(report: dict[str, Any]) -> tuple[str, str]:
    (only,) = report["problems"]
    return only["path"], only["message"]


def test_a_trial_that_fits_nowhere_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(tmp_path, {"name": "single", "max_length": {"batches": 4}})
    words = (path, "--slots", "3", "--config=resources.slots_per_trial=4")
    code, report = run(capsys, *words)
    assert code == 1
    text = "is 4, but --slots gives the cluster 3: no trial could ever start"
    assert problem(report) == ("resources.slots_per_trial", text)
    _, report = run(capsys, path, "--slots", "0")
    assert problem(report)[0] == "resources.slots_per_trial"


def test_a_limit_below_one_trial_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(tmp_path, {"name": "single", "max_length": {"batches": 4}})
    overrides = ("--config=resources.slots_per_trial=2", "--config=resources.max_slots=1")
    _, report = run(capsys, path, "--slots", "4", *overrides)
    assert not report["ok"]


def test_a_custom_search_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config(tmp_path, {"name": "custom", "unit": "batches"})
    _, report = run(capsys, path, "--slots", "4")
    place, message = problem(report)
    assert place == "searcher.name"
    assert "cannot be simulated" in message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"\xff", "cannot be read"),
        (b"{}", "must be 1 of recorded curves"),
    ],
)
def test_curves_that_are_none_are_refused_with_their_file(
    text: bytes | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    curves = tmp_path / "curves.json"
    if text is not None:
        curves.write_bytes(text)
    path = config(tmp_path, {"name": "single", "max_length": {"batches": 4}})
    _, report = run(capsys, path, "--slots", "4", "--curves", str(curves))
    place, found = problem(report)
    assert place.startswith(str(curves))
    assert message in found


def test_a_long_simulation_tells_how_far_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(tmp_path, {"name": "random", "max_length": {"batches": 4}, "max_trials": 250})
    assert main((path, "--slots", "100")) == 0
    # Trials end one after the other: told at the first 100 and at 200.
    assert capsys.readouterr().err == "simulated 100 of 250\nsimulated 200 of 250\n"
