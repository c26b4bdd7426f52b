"""What a search would do, told by the search itself."""

import json
from pathlib import Path

import pytest

from control_plane.config.__main__ import main
from control_plane.config.check import check
from control_plane.config.preview import Kind, preview

BASE = """
name: preview
entrypoint: python3 train.py
hyperparameters:
  global_batch_size: 32
  lr: {type: double, minval: 0, maxval: 1, count: 3}
  layers: {type: categorical, vals: [1, 2, 4, 8]}
"""


@pytest.mark.parametrize(
    ("searcher", "expected"),
    [
        ("{name: random, metric: m, max_trials: 1, max_length: {batches: 50}}", [Kind(1, 50)]),
        ("{name: random, metric: m, max_trials: 600, max_length: {batches: 7}}", [Kind(600, 7)]),
        (
            "{name: random, metric: m, max_trials: 9, max_length: {records: 70}, "
            "max_concurrent_trials: 2}",
            [Kind(9, 70)],
        ),
        # 3 values of lr times 4 of layers.
        ("{name: grid, metric: m, max_length: {batches: 5}}", [Kind(12, 5)]),
    ],
)
def test_every_trial_is_counted_with_its_length(searcher: str, expected: list[Kind]) -> None:
    assert preview(check(f"{BASE}searcher: {searcher}\n").search_plan()) == expected


def test_steps_are_the_unit_of_the_step_era() -> None:
    text = BASE.replace("python3 train.py", "model:Trial")
    searcher = "{name: random, metric: m, max_trials: 3, max_steps: 4}"
    config = check(f"{text}searcher: {searcher}\n")
    assert (config.unit, preview(config.search_plan())) == ("steps", [Kind(3, 4)])


def test_the_command_reports_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(f"{BASE}searcher: {{name: grid, metric: m, max_length: {{batches: 5}}}}\n")
    assert main([str(path), "--json", "--preview"]) == 0
    assert json.loads(capsys.readouterr().out)["preview"] == {
        "searcher": "grid",
        "unit": "batches",
        "kinds": [{"trials": 12, "length": 5}],
    }
