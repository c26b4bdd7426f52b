"""Previews of searches, computed by the search methods.

In previews of halvings, trial i has the validation metric i; results arrive in the trials' order.
"""

import json
from pathlib import Path

import pytest

from control_plane.config.__main__ import main
from control_plane.config.check import check_config
from control_plane.config.experiment import ExperimentConfig
from control_plane.config.preview import Bracket, NotPreviewable, Rung, preview_search

BASE = """
name: preview
entrypoint: python3 train.py
hyperparameters:
  global_batch_size: 32
  lr: {type: double, minval: 0, maxval: 1, count: 3}
  layers: {type: categorical, vals: [1, 2, 4, 8]}
"""
HALVING = "name: async_halving, metric: m, divisor: 3"
# Nine trials in rungs at 9 / 3^2 = 1, 3 and 9.
NINE = f"{HALVING}, num_rungs: 3, max_trials: 9, max_length: {{batches: 9}}"


def check_searcher(searcher: str) -> ExperimentConfig:
    return check_config(f"{BASE}searcher: {{{searcher}}}\n")


def stopped_counts(searcher: str) -> list[list[tuple[int, int]]]:
    """Return the length and the number of stopped trials of each rung, by bracket."""
    brackets = preview_search(check_searcher(searcher)).brackets
    return [[(rung.length, rung.stopped) for rung in bracket.rungs] for bracket in brackets]


@pytest.mark.parametrize(
    ("searcher", "trials", "length"),
    [
        ("name: random, metric: m, max_trials: 1, max_length: {batches: 50}", 1, 50),
        ("name: random, metric: m, max_trials: 600, max_length: {batches: 7}", 600, 7),
        (
            "name: random, metric: m, max_trials: 9, max_length: {records: 70}, "
            "max_concurrent_trials: 2",
            9,
            70,
        ),
        # 3 values of lr times 4 of layers.
        ("name: grid, metric: m, max_length: {batches: 5}", 12, 5),
        (
            f"{HALVING}, num_rungs: 1, max_trials: 40, max_length: {{batches: 6}}",
            40,
            6,
        ),
    ],
)
def test_preview_counts_trials_with_the_length(searcher: str, trials: int, length: int) -> None:
    preview = preview_search(check_searcher(searcher))
    assert preview.brackets == (Bracket((Rung(length, trials, trials, trials),)),)
    assert not preview.is_example


def test_preview_counts_no_batches_for_epochs_of_the_trial() -> None:
    preview = preview_search(check_searcher(NINE.replace("batches: 9", "epochs: 9")))
    assert [rung.length for rung in preview.brackets[0].rungs] == [1, 3, 9]
    assert preview.batches is None
    assert preview_search(check_searcher(NINE)).batches == 6 * 1 + 2 * 3 + 9


def test_preview_of_a_single_search_is_one_trial() -> None:
    constant = "name: p\nentrypoint: python3 train.py\nhyperparameters: {lr: 0.1}\n"
    config = check_config(
        f"{constant}searcher: {{name: single, metric: m, max_length: {{batches: 8}}}}\n"
    )
    assert preview_search(config).brackets == (Bracket((Rung(8, 1, 1, 1),)),)


def test_preview_of_the_step_era_counts_steps() -> None:
    text = BASE.replace("python3 train.py", "model:Trial")
    searcher = "{name: random, metric: m, max_trials: 3, max_steps: 4}"
    config = check_config(f"{text}batches_per_step: 50\nsearcher: {searcher}\n")
    preview = preview_search(config)
    assert (config.unit, preview.brackets) == ("steps", (Bracket((Rung(4, 3, 3, 3),)),))
    # 3 trials * 4 steps * 50 batches.
    assert preview.batches == 600


def test_preview_counts_batches_by_batch_size_of_trials() -> None:
    sizes = "global_batch_size: {type: categorical, vals: [16, 32]}"
    text = f"name: p\nentrypoint: python3 train.py\nhyperparameters: {{{sizes}}}\n"
    config = check_config(
        f"{text}searcher: {{name: grid, metric: m, max_length: {{records: 100}}}}\n"
    )
    # 100 / 16 and 100 / 32, rounded down: 6 + 3.
    assert preview_search(config).batches == 9


def test_preview_promotes_a_third_of_a_rung() -> None:
    preview = preview_search(check_searcher(NINE))
    # Results arrive as 0, 1, ... 8, so each third result promotes the best waiting trial: 0, 1, 2.
    # At 3 the third result promotes 0. 9 - 3 stop at 1, 3 - 1 at 3, and 1 at 9.
    rungs = (Rung(1, 9, 6, 6), Rung(3, 3, 2, 2), Rung(9, 1, 1, 1))
    assert preview.brackets == (Bracket(rungs),)
    # 6 * 1 + 2 * 3 + 1 * 9.
    assert (preview.batches, preview.is_example) == (21, True)


def test_preview_of_improving_results_promotes_more_than_expected() -> None:
    preview = preview_search(check_searcher(f"{NINE}, smaller_is_better: false"))
    # Each new result is the best. From the third result on, int(3 / 3) = 1 trial may continue: the
    # newest. At 1 these are trials 2 to 8, at 3 trials 4 to 8. 2 stop at 1, 2 at 3 and 5 at 9.
    rungs = (Rung(1, 9, 2, 6), Rung(3, 7, 2, 2), Rung(9, 5, 5, 1))
    assert preview.brackets == (Bracket(rungs),)


def test_preview_with_stop_once_continues_the_first_trial() -> None:
    # Trial 0 is the best of one result; later results are never in the best third.
    assert stopped_counts(f"{NINE}, stop_once: true") == [[(1, 8), (3, 0), (9, 1)]]
    # Each new result is the best so far.
    every = f"{NINE}, stop_once: true, smaller_is_better: false"
    assert stopped_counts(every) == [[(1, 0), (3, 0), (9, 9)]]


def test_preview_shows_rungs_without_trials() -> None:
    halving = "name: async_halving, metric: m, num_rungs: 4, max_trials: 5"
    preview = preview_search(check_searcher(f"{halving}, max_length: {{batches: 64}}"))
    # Of 5 trials int(5 / 4) = 1 continues, and of 1 trial 0; the estimate assumes 1 at the end.
    rungs = (Rung(1, 5, 4, 4), Rung(4, 1, 1, 0), Rung(16, 0, 0, 0), Rung(64, 0, 0, 1))
    assert preview.brackets == (Bracket(rungs),)


def test_preview_separates_brackets() -> None:
    adaptive = "name: adaptive_asha, metric: m, divisor: 3, mode: conservative, max_trials: 20"
    preview = preview_search(check_searcher(f"{adaptive}, max_length: {{batches: 9}}"))
    # int(ln 9 / ln 3) + 1 = 3 and int(ln 20 / ln 3) + 1 = 3 rungs at most: brackets of 3, 2 and 1.
    # The weights 9/3, 3/2 and 1/1 divide 20 into int(10.9), int(5.5) and int(3.6), and the first
    # bracket gets the remaining 2: 12, 5 and 3. 4 of 12, 1 of 4 and 1 of 5 continue.
    assert preview.brackets == (
        Bracket((Rung(1, 12, 8, 8), Rung(3, 4, 3, 3), Rung(9, 1, 1, 1))),
        Bracket((Rung(3, 5, 4, 4), Rung(9, 1, 1, 1))),
        Bracket((Rung(9, 3, 3, 3),)),
    )
    # (8 * 1 + 3 * 3 + 9) + (4 * 3 + 9) + 3 * 9.
    assert preview.batches == 26 + 21 + 27


def test_preview_of_a_synchronous_halving_is_exact() -> None:
    halving = "name: sync_halving, metric: m, divisor: 3, num_rungs: 3, max_length: {batches: 9}"
    preview = preview_search(check_searcher(f"{halving}, budget: {{batches: 42}}"))
    # Rungs of 9, 3 and 1 trials train 9 * 1 + 3 * 2 + 1 * 6 = 21; 42 is twice as much.
    assert preview.brackets == (Bracket((Rung(1, 18, 12, 12), Rung(3, 6, 4, 4), Rung(9, 2, 2, 2))),)
    assert not preview.is_example


def test_preview_counts_more_trials_than_run_concurrently() -> None:
    # 3,000 trials begin 16 at a time: 1,000 of 3,000 continue, then 333 of 1,000, then 0.
    many = f"{HALVING}, num_rungs: 3, max_trials: 3000, max_length: {{batches: 90}}"
    progress: list[int] = []
    preview = preview_search(check_searcher(many), progress.append)
    assert [rung.stopped for rung in preview.brackets[0].rungs] == [2000, 667, 333]
    assert progress == sorted(progress)
    assert 0 < progress[0] < progress[-1] <= 3000


def test_preview_stops_timed_trials_at_rungs() -> None:
    timed = f"{HALVING}, num_rungs: 3, max_trials: 4, max_time: 9, time_metric: epochs"
    preview = preview_search(check_searcher(timed))
    # Trial 0 is the best everywhere and reaches 9. Of 2, 3 and 4 results in the first rung
    # max(trunc(n / 3), 1) = 1 continues, which is never a later trial.
    assert preview.brackets == (Bracket((Rung(1, 4, 3, 3), Rung(3, 1, 0, 0), Rung(9, 1, 1, 1))),)
    assert preview.batches is None


def test_preview_of_a_population_replaces_the_worst_trials() -> None:
    population = "name: pbt, metric: m, population_size: 4, num_rounds: 2"
    rounds = "length_per_round: {batches: 9}, replace_function: {truncate_fraction: 0.25}"
    explore = "explore_function: {resample_probability: 0.2, perturb_factor: 0.2}"
    preview = preview_search(check_searcher(f"{population}, {rounds}, {explore}"))
    # Trial 3 is the worst: trial 3 and the copy of trial 0 train one round, the rest both rounds.
    assert preview.brackets == (Bracket((Rung(9, 5, 2, None), Rung(18, 3, 3, None))),)
    assert preview.is_example


def test_command_prints_the_preview_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"{BASE}searcher: {{name: grid, metric: m, max_length: {{records: 64}}}}\n")
    assert main([str(path), "--json", "--preview"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["preview"] == {
        "searcher": "grid",
        "unit": "records",
        "trials": 12,
        "units": 12 * 64,
        "batches": 12 * 64 // 32,
        "is_example": False,
        "brackets": [
            {"rungs": [{"length": 64, "reached": 12, "stopped": 12, "expected": 12}]},
        ],
    }
    assert err == ""


def test_command_prints_the_progress_of_a_preview(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(
        f"{BASE}searcher: {{name: random, metric: m, max_trials: 600, max_length: 7}}\n"
    )
    assert main([str(path), "--json", "--preview"]) == 0
    # A trial gets two answers, for result and end: 1,000 answers are 500 trials.
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "previewed 500 of 600"


def test_custom_search_cannot_be_previewed() -> None:
    with pytest.raises(NotPreviewable) as refused:
        preview_search(check_searcher("name: custom, metric: m"))
    assert str(refused.value) == (
        "custom is driven by your own search method, whose operations cannot be previewed"
    )
