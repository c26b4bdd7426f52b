"""Tests of `python -m simulator.search`: every searcher, and messages for unsupported input."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from simulator.search.__main__ import main
from tests.conftest import require

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
    if name == "bayesian":
        require("optuna")
    fields = (STEPS if steps else LENGTHS)[name]
    other = {"batches_per_step": 10} if steps else {"records_per_epoch": 640}
    path = config(tmp_path, {"name": name, **fields}, **other)
    code, report = run(capsys, path, "--slots", "2")
    assert code == 0
    simulation = report["simulation"]
    assert simulation["state"] == "COMPLETED"
    assert simulation["curves"] == {"kind": "synthetic"}
    assert simulation["best"][-1][1] == simulation["best_metric"]
    assert 0 < simulation["slot_use"] <= 1


@pytest.mark.parametrize("place", ["searcher.max_length", "min_validation_period"])
def test_simulation_of_epochs_requires_records_per_epoch(
    place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unit, period = ("epochs", "batches") if place.startswith("s") else ("batches", "epochs")
    searcher = {"name": "single", "metric": "loss", "max_length": {unit: 3}}
    path = config(tmp_path, searcher, min_validation_period={period: 1})
    code, report = run(capsys, path, "--slots", "2")
    assert code != 0
    (problem,) = report["problems"]
    assert problem["path"] == "records_per_epoch"
    assert problem["message"].startswith(f"is needed to simulate {place}")


def test_equal_seeds_give_equal_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config(tmp_path, {"name": "adaptive_asha", **LENGTHS["adaptive_asha"]})
    texts = []
    for seed in (5, 5, 6):
        simulation = run(capsys, path, "--slots", "3", "--seed", str(seed))[1]["simulation"]
        del simulation["wall_seconds"]
        texts.append(json.dumps(simulation))
    assert texts[0] == texts[1] != texts[2]


def test_validation_period_comes_from_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(tmp_path, {"name": "single", "max_length": {"batches": 10}})
    alone = run(capsys, path, "--slots", "1")[1]["simulation"]
    period = "--config=min_validation_period.batches=4"
    simulation = run(capsys, path, "--slots", "1", period)[1]["simulation"]
    # The first validation comes at the end, or after 4 of 10 batches with the period.
    assert alone["best"][0][0] == alone["makespan_seconds"] == simulation["makespan_seconds"]
    assert simulation["best"][0][0] == pytest.approx(0.4 * alone["makespan_seconds"], abs=0.001)


def test_recorded_curve_sets_metric_and_speed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    curves = tmp_path / "curves.json"
    trials = [{"hparams": {"n": 1}, "seconds_per_batch": 1.0, "points": [[5, 0.5], [8, 0.25]]}]
    curves.write_text(json.dumps({"version": 1, "metric": "loss", "trials": trials}))
    path = config(tmp_path, {"name": "random", "max_length": {"batches": 10}, "max_trials": 4})
    simulation = run(capsys, path, "--slots", "2", "--curves", str(curves))[1]["simulation"]
    # 4 trials of 10 batches at 1 s on 2 slots take 20 s; 2 of 10 batches are past the record.
    assert simulation["makespan_seconds"] == 20
    assert (simulation["batches"], simulation["units"], simulation["slot_use"]) == (40, 40, 1)
    assert simulation["best"] == [[10, 0.25]]
    assert simulation["curves"] | {"exact": 0} == {
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


def test_rejects_trial_larger_than_the_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(tmp_path, {"name": "single", "max_length": {"batches": 4}})
    words = (path, "--slots", "3", "--config=resources.slots_per_trial=4")
    code, report = run(capsys, *words)
    assert code == 1
    text = "is 4, but the simulated cluster has 3: no trial could ever start"
    assert problem(report) == ("resources.slots_per_trial", text)
    _, report = run(capsys, path, "--slots", "0")
    assert problem(report)[0] == "resources.slots_per_trial"


def test_rejects_max_slots_below_slots_per_trial(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(tmp_path, {"name": "single", "max_length": {"batches": 4}})
    overrides = ("--config=resources.slots_per_trial=2", "--config=resources.max_slots=1")
    _, report = run(capsys, path, "--slots", "4", *overrides)
    assert not report["ok"]


def test_rejects_custom_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
        (b"{}", "must be 1; `detcloud experiment curves`"),
    ],
)
def test_rejects_invalid_curves_with_the_file_name(
    text: bytes | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    curves = tmp_path / "curves.json"
    if text is not None:
        curves.write_bytes(text)
    path = config(tmp_path, {"name": "single", "max_length": {"batches": 4}})
    _, report = run(capsys, path, "--slots", "4", "--curves", str(curves))
    place, description = problem(report)
    assert place.startswith(str(curves))
    assert message in description


def test_long_simulation_prints_progress(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = config(tmp_path, {"name": "random", "max_length": {"batches": 4}, "max_trials": 250})
    assert main((path, "--slots", "100")) == 0
    # Trials end one after the other: progress is printed after 100 and 200 trials.
    assert capsys.readouterr().err == "simulated 100 of 250\nsimulated 200 of 250\n"


RANDOM = {"name": "random", "max_length": {"batches": 100}, "max_trials": 4}


def hours(tmp_path: Path, **resources: Any) -> list[str]:
    """Return command words of a search of about 4 * 100 batches at 60 s, 6.7 hours on a slot."""
    path = config(tmp_path, RANDOM, records_per_epoch=640, resources=resources)
    return [path, "--slots", "1", "--seconds-per-unit", "60"]


def test_deadline_is_met_with_spot_machines(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (*hours(tmp_path), "--deadline", "12h", "--spot-availability", "0.6")
    code, report = run(capsys, *words)
    assert code == 0
    spot = report["simulation"]["spot"]
    assert spot["work_seconds"] == report["simulation"]["makespan_seconds"]
    assert (spot["deadline_seconds"], spot["changeover_seconds"]) == (43_200, 300)
    assert len(spot["market"]) == 144  # ticks of 5 minutes in 12 hours
    assert [policy["policy"] for policy in spot["policies"]] == [
        "reserved slack",
        "uniform progress",
        "greedy",
        "on-demand",
    ]
    assert all(policy["finished_seconds"] <= 43_200 for policy in spot["policies"])
    assert all(policy["share"] >= spot["optimum_share"] - 1e-9 for policy in spot["policies"])
    again = run(capsys, *words)[1]["simulation"]["spot"]
    assert again == spot != run(capsys, *words, "--seed", "1")[1]["simulation"]["spot"]


def test_deadline_may_come_from_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, report = run(capsys, *hours(tmp_path, deadline="1d"), "--spot-availability", "1")
    assert code == 0
    spot = report["simulation"]["spot"]
    assert spot["deadline_seconds"] == 86_400
    assert spot["policies"][0]["starts"] == 1


def test_follows_published_spot_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"metadata": {"gap_seconds": 600}, "data": [1, 1, 0, 0] * 30}))
    words = (*hours(tmp_path), "--spot-trace", str(trace), "--changeover-seconds", "60")
    code, report = run(capsys, *words, "--deadline", "20h")
    assert code == 0
    assert report["simulation"]["spot"]["market"] == "ss.." * 30
    assert report["simulation"]["spot"]["tick_seconds"] == 600
    _, refused = run(capsys, *words, "--deadline", "21h")
    assert refused["problems"][0]["message"] == ("lasts 72000 s, but the deadline is after 75600 s")


@pytest.mark.parametrize(
    ("words", "path", "message"),
    [
        (["--deadline=12h"], "--deadline", "requires an option for spot machines"),
        (["--spot-availability=0.5"], "--deadline", "is needed where spot machines"),
        (["--spot-availability=2", "--deadline=12h"], "--spot-availability", "between 0 and 1"),
        (["--spot-availability=nan", "--deadline=12h"], "--spot-availability", "between 0 and 1"),
        (["--spot-availability=0.5", "--deadline=soon"], "--deadline", "must be a duration"),
        (["--spot-availability=0.5", "--deadline="], "--deadline", "must be a duration"),
        (
            ["--spot-availability=0.5", "--deadline=2027-01-31T18:00:00Z"],
            "--deadline",
            "is a point in time, but virtual time supports durations only",
        ),
        (["--spot-availability=0.5", "--deadline=61d"], "--deadline", "for up to 60 days"),
        (["--spot-availability=0.5", "--deadline=6h"], "the deadline", "leaves 21600 s, but"),
        (
            ["--spot-availability=0.5", "--deadline=12h", "--changeover-seconds=-1"],
            "--changeover-seconds",
            "between 0 and 86400",
        ),
        (["--spot-trace=none.json", "--deadline=12h"], "none.json", "cannot be read"),
    ],
)
def test_rejects_invalid_deadlines_and_spot_options(
    words: list[str],
    path: str,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, report = run(capsys, *hours(tmp_path), *words)
    assert code == 1
    (problem,) = report["problems"]
    assert problem["path"] == path
    assert message in problem["message"]


def test_rejects_invalid_spot_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.json"
    trace.write_text("[]")
    _, report = run(capsys, *hours(tmp_path), f"--spot-trace={trace}", "--deadline=12h")
    assert report["problems"][0]["path"] == str(trace)
    assert "gap_seconds" in report["problems"][0]["message"]


@pytest.mark.parametrize(
    ("metric", "records", "known"),
    [
        ("batches", 0, True),
        ("records", 0, True),
        ("epochs", 100, True),
        ("epochs", 0, False),
        ("hours", 100, False),
    ],
)
def test_time_metric_must_be_a_unit_of_training(
    metric: str, records: int, known: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "entrypoint: model_def:MyTrial\n"
        "hyperparameters: {global_batch_size: 10}\n"
        f"searcher: {{name: adaptive_asha, metric: loss, max_trials: 4, max_time: 400,"
        f" time_metric: {metric}}}\nrecords_per_epoch: {records}\n"
    )
    code, report = run(capsys, str(file), "--slots=2")
    assert (code == 0) == known
    if not known:
        (problem,) = report["problems"]
        assert problem["path"] == "searcher.time_metric"
        assert f'it is not known how "{metric}" grows with training' in problem["message"]
