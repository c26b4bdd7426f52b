"""`detcloud simulate`: a search in virtual time on synthetic, recorded or a cluster's curves."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from detcloud.client.curves import seconds_per_batch
from detcloud.client.records import MetricReport
from tests.conftest import require
from tests.patience import PROCESS_SECONDS_MAX
from tests.unit.cli.conftest import Detcloud
from tests.unit.cli.terminals import read_terminal
from tests.unit.client.fake_cluster import FakeCluster

RANDOM = """\
name: g
entrypoint: python3 x.py
hyperparameters:
  lr: {type: double, minval: 0, maxval: 1}
searcher: {name: random, metric: validation_loss, max_trials: 4, max_length: {batches: 10}}
"""


@pytest.fixture
def search(tmp_path: Path) -> str:
    path = tmp_path / "search.yaml"
    path.write_text(RANDOM)
    return str(path)


def curves(tmp_path: Path, **changed: object) -> str:
    trial = {"hparams": {"lr": 0.5}, "seconds_per_batch": 1.0, "points": [[5, 0.5], [8, 0.25]]}
    document = {"version": 1, "metric": "validation_loss", "trials": [trial], **changed}
    path = tmp_path / "curves.json"
    path.write_text(json.dumps(document))
    return str(path)


def test_recorded_curves_predict_the_duration_of_a_search(
    detcloud: Detcloud, search: str, tmp_path: Path
) -> None:
    done = detcloud("simulate", search, "--slots", "2", "--curves", curves(tmp_path))
    assert (done.code, done.err) == (0, "")
    # 4 trials of 10 batches at 1 s on 2 slots: 20 s; 2 of 10 batches are past the record's 8.
    head, _, chart = done.out.partition("\n\n")
    assert head.splitlines() == [
        "Searcher  random",
        "Cluster   2 slots, 1 per trial; 100.0 % used",
        "Makespan  20 seconds",
        "Trials    4",
        "Trained   40 batches",
        "Best      validation_loss 0.25 by trial 1 after 10 seconds",
        "Curves    from 1 of 1 recorded trial; 0 of 4 simulated trials with identical"
        " hyperparameters; 20 % of the batches after the end of a recorded curve, with its last"
        " metric",
        "Ended     finished",
    ]
    assert chart.splitlines()[0].strip() == "best validation_loss by seconds"


def test_synthetic_curves_depend_only_on_the_seed(detcloud: Detcloud, search: str) -> None:
    def simulate(*words: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(
            detcloud("simulate", search, "--slots", "4", "--json", *words).out
        )
        del document["wall_seconds"]
        return document

    first = simulate()
    assert first == simulate("--seed", "0") != simulate("--seed", "1")
    assert first["curves"] == {"kind": "synthetic"}
    slow = simulate("--seconds-per-unit", "3600")
    assert slow["makespan_seconds"] == pytest.approx(3600 * first["makespan_seconds"], rel=1e-3)
    assert simulate("--config", "searcher.max_trials=7")["trials"] == 7


def test_long_searches_are_printed_in_hours(detcloud: Detcloud, search: str) -> None:
    out = detcloud("simulate", search, "--slots", "1", "--seconds-per-unit", "600").out
    assert " hours\n" in out.splitlines()[2] + "\n"
    assert "best validation_loss by hours" in out


def test_deadline_compares_costs_of_spot_policies(
    detcloud: Detcloud, search: str, tmp_path: Path
) -> None:
    # 40 batches at 1 s; spot machines exist in 20 of every 30 s; a changeover takes 5 s.
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"metadata": {"gap_seconds": 10}, "data": [1, 1, 0] * 5}))
    words = ("--slots", "1", "--curves", curves(tmp_path), "--deadline", "130s")
    spot = ("--spot-trace", str(trace), "--changeover-seconds", "5")
    done = detcloud("simulate", search, *words, *spot)
    assert (done.code, done.err) == (0, "")
    # 15 + 15 + 10 s of work after three changeovers: 55 s at 0.32 are 17.6. On-demand alone takes
    # 40 + 5 s: 39.1 %.
    assert done.out.partition("\n\n40 s of work")[2].splitlines() == [
        " within 2.17 min, 5 s for a changeover, spot machines available 69 % of the time",
        "",
        " Policy           | Cost    | Done after | On spot | On-demand | Starts",
        "------------------+---------+------------+---------+-----------+--------",
        " reserved slack   | 39.1 %  | 75 s       | 55 s    | 0 s       |      3",
        " uniform progress | 39.1 %  | 75 s       | 55 s    | 0 s       |      3",
        " greedy           | 39.1 %  | 75 s       | 55 s    | 0 s       |      3",
        " on-demand        | 100.0 % | 45 s       | 0 s     | 45 s      |      1",
        " the optimum      | 39.1 %  | N/A        | N/A     | N/A       |    N/A",
        "",
        "spot machines     ss.ss.ss.ss.s",
        "reserved slack    ss.ss.ss",
        "uniform progress  ss.ss.ss",
        "greedy            ss.ss.ss",
        "on-demand         DDDDD",
        "                  s spot, D on-demand, . no machine; 2.17 min in all",
    ]


def test_chart_is_written_to_a_file(detcloud: Detcloud, search: str, tmp_path: Path) -> None:
    require("matplotlib")
    path = tmp_path / "course.png"
    done = detcloud("simulate", search, "--slots", "2", "--plot", str(path))
    assert (done.code, done.err) == (0, f"{path}\n")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_simulation_errors_are_a_single_line(
    detcloud: Detcloud, search: str, tmp_path: Path
) -> None:
    done = detcloud("simulate", search, "--slots", "0")
    assert (done.code, done.out) == (2, "")
    assert "resources.slots_per_trial: is 1, but the simulated cluster has 0" in done.err
    wrong = curves(tmp_path, metric="accuracy")
    done = detcloud("simulate", search, "--slots", "1", "--curves", wrong)
    assert done.code == 2
    assert f"{wrong}: metric: is 'accuracy', but the search compares 'validation_loss'" in done.err
    assert detcloud("simulate", search).code == 2
    assert detcloud("simulate", "none.yaml", "--slots", "1").code == 2
    words = ("--slots", "1", "--curves", wrong, "--experiment", "1")
    assert "not allowed with argument" in detcloud("simulate", search, *words).err


def test_simulates_a_recorded_experiment_of_the_cluster(
    ended_cluster: FakeCluster, detcloud: Detcloud, search: str
) -> None:
    ended_cluster.reports = [
        {
            "group": group,
            "steps_completed": steps,
            "metrics": {name: 1 / steps},
            "time_ms": 500 * steps,
        }
        for group, name in (("training", "loss"), ("validation", "validation_loss"))
        for steps in (10, 20)
    ]
    document = json.loads(detcloud("experiment", "curves", "1").out)
    assert document["metric"] == "validation_loss"
    # 10 batches between two reports take 5 s.
    assert [trial["seconds_per_batch"] for trial in document["trials"]] == [0.5, 0.5]
    assert document["trials"][0]["points"] == [[10, 0.1], [20, 0.05]]
    assert document["trials"][0]["hparams"]["lr"] == 0.1
    words = ("--slots", "4", "--experiment", "1", "--json")
    simulation = json.loads(detcloud("simulate", search, *words).out)
    assert simulation["makespan_seconds"] == 5
    assert simulation["best_metric"] == 0.1
    assert simulation["curves"]["trials"] == 2


def test_pauses_between_reports_are_excluded_from_batch_time() -> None:
    def report(steps: int, time_ms: int) -> MetricReport:
        return {"group": "training", "steps_completed": steps, "metrics": {}, "time_ms": time_ms}

    # 10 batches in 1 s, 10 in 100 s, 20 in 2 s: the median batch takes 0.1 s.
    paused = [report(10, 0), report(20, 1_000), report(30, 101_000), report(50, 103_000)]
    assert seconds_per_batch(paused) == 0.1
    assert seconds_per_batch(paused[:1]) is None
    # A trial that returned to a checkpoint has no training time in between.
    assert seconds_per_batch([report(20, 0), report(10, 1_000)]) is None


def test_a_long_simulation_shows_progress(search: str) -> None:
    terminal, stderr = pty.openpty()
    program = (
        "import sys; from detcloud.cli import main; from detcloud.cli.rendering import progress;"
        "progress.SHOWN_AFTER_SECONDS = progress.REDRAWN_AFTER_SECONDS = 0.0;"
        "sys.exit(main.main(sys.argv[1:]))"
    )
    words = ["simulate", search, "--slots", "100", "--config", "searcher.max_trials=250"]
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        env={**os.environ, "TERM": "xterm", "COLUMNS": "79"},
        stdout=subprocess.PIPE,
        stderr=stderr,
        check=True,
        timeout=PROCESS_SECONDS_MAX,
    )
    os.close(stderr)
    drawn = read_terminal(terminal)
    os.close(terminal)
    assert "simulating [########------------] 100 trials of 250 trials" in drawn
    assert drawn.endswith("\r\x1b[K")
    assert "Trials    250" in done.stdout.decode()
