"""`detcloud preview-search`: the number of trials per length, with a bar for each rung."""

import csv
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from detcloud.cli.local.config_checker import InvalidConfigError, check_file
from tests.patience import PROCESS_SECONDS_MAX
from tests.unit.cli.conftest import CommandResult, Detcloud
from tests.unit.cli.terminals import read_terminal

HALVING = "{name: async_halving, metric: loss, divisor: 3, num_rungs: 3, max_trials: 9"


@pytest.fixture
def run_preview(detcloud: Detcloud, tmp_path: Path) -> Detcloud:
    def run(searcher: str, *words: str) -> CommandResult:
        path = tmp_path / "search.yaml"
        path.write_text(
            "name: g\nentrypoint: python3 x.py\nrecords_per_epoch: 320\n"
            "hyperparameters:\n  global_batch_size: 32\n"
            "  a: {type: int, minval: 1, maxval: 4, count: 4}\n"
            f"searcher: {searcher}\n"
        )
        return detcloud("preview-search", str(path), *words)

    return run


def test_a_search_without_rungs_is_a_single_row(run_preview: Detcloud) -> None:
    done = run_preview("{name: grid, metric: loss, max_length: {batches: 100}}")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        " Trials | Train for   | Total",
        "--------+-------------+-------------",
        "      4 | 100 batches | 400 batches",
        "grid: 4 trials, 400 batches in all",
    ]


def test_halving_is_drawn_as_a_row_per_rung(run_preview: Detcloud) -> None:
    done = run_preview(f"{HALVING}, max_length: {{epochs: 9}}}}")
    assert done.code == 0
    # 9 trials reach 1 epoch and 6 of the 9 stop; 3 reach 3 epochs and 2 of the 3 stop; 1 reaches 9.
    # A full bar of 24 cells is 9 trials: 24 * 6 / 9 = 16, 24 * 3 / 9 = 8, round(24 * 2 / 9) = 5 and
    # round(24 / 9) = 3. An epoch has 320 / 32 batches.
    assert done.out.splitlines() == [
        " Trials | Train for | Expected | Total    | █ stop, ░ continue",
        "--------+-----------+----------+----------+--------------------------",
        f"      6 | 1 epochs  |        6 | 6 epochs | {'█' * 16}{'░' * 8}",
        f"      2 | 3 epochs  |        2 | 6 epochs | {'█' * 5}{'░' * 3}",
        f"      1 | 9 epochs  |        1 | 9 epochs | {'█' * 3}",
        "async_halving: 9 trials, 21 epochs in all (210 batches)",
        "This is an example in which trial i has the metric i: in a real search the results "
        "decide which trials continue.",
        "Expected counts assume that one in `divisor` trials continues: 21 epochs in all.",
    ]


def test_brackets_are_numbered(run_preview: Detcloud) -> None:
    searcher = (
        "{name: adaptive_asha, metric: loss, divisor: 3, mode: conservative, max_trials: 20, "
        "max_length: {batches: 9}}"
    )
    # As worked out in tests/unit/config/test_config_preview.py.
    rows = list(csv.reader(io.StringIO(run_preview(searcher, "--csv").out)))
    assert rows == [
        ["Bracket", "Trials", "Train for", "Expected", "Total"],
        ["1", "8", "1 batches", "8", "8 batches"],
        ["1", "3", "3 batches", "3", "9 batches"],
        ["1", "1", "9 batches", "1", "9 batches"],
        ["2", "4", "3 batches", "4", "12 batches"],
        ["2", "1", "9 batches", "1", "9 batches"],
        ["3", "3", "9 batches", "3", "27 batches"],
    ]
    text = run_preview(searcher).out
    assert "\nadaptive_asha: 20 trials in 3 brackets, 74 batches in all\n" in text


def test_a_rung_without_trials_has_no_bar(run_preview: Detcloud) -> None:
    searcher = HALVING.replace("9", "2")
    # int(2 / 3) = 0 of 2 trials continue.
    lines = run_preview(f"{searcher}, max_length: {{batches: 9}}}}").out.splitlines()
    assert lines[2].endswith(f"| {'█' * 24}")
    assert [line.split("|")[0] for line in lines[3:5]] == ["      0 "] * 2
    assert [line.split("|")[-1] for line in lines[3:5]] == [""] * 2


def test_json_contains_all_numbers(run_preview: Detcloud) -> None:
    words = ("--json", "--config", "searcher.max_length.epochs=27")
    document = json.loads(run_preview(f"{HALVING}, max_length: {{epochs: 9}}}}", *words).out)
    rungs = [
        {"length": 3, "reached": 9, "stopped": 6, "expected": 6},
        {"length": 9, "reached": 3, "stopped": 2, "expected": 2},
        {"length": 27, "reached": 1, "stopped": 1, "expected": 1},
    ]
    assert document == {
        "searcher": "async_halving",
        "unit": "epochs",
        "trials": 9,
        "units": 63,
        "batches": 630,
        "is_example": True,
        "brackets": [{"rungs": rungs}],
    }


def test_preview_refuses_a_file_like_config_check(
    run_preview: Detcloud, detcloud: Detcloud
) -> None:
    done = run_preview("{name: grod}")
    assert (done.code, done.out) == (2, "")
    first, *problems = done.err.splitlines()
    assert first.endswith("search.yaml was refused")
    path = first.removeprefix("error: ").removesuffix(" was refused")
    assert problems == detcloud("config", "check", path).out.splitlines()
    assert problems[0].startswith(f"{path}:7: searcher.name")
    assert detcloud("preview-search", "none.yaml").code == 2


def test_a_custom_search_method_cannot_be_previewed(run_preview: Detcloud) -> None:
    done = run_preview("{name: custom, metric: m}")
    assert (done.code, done.out) == (2, "")
    assert "whose operations cannot be previewed" in done.err


@pytest.mark.nightly
def test_progress_lines_of_the_checker_are_no_error(tmp_path: Path) -> None:
    path = tmp_path / "search.yaml"
    searcher = "{name: random, metric: m, max_trials: 600, max_length: 7}"
    path.write_text(f"name: g\nentrypoint: python3 x.py\nsearcher: {searcher}\n")
    lines: list[str] = []

    def handle_line(line: str) -> bool:
        lines.append(line)
        return True

    assert check_file(path, [], "--preview", handle_line=handle_line)["preview"]["trials"] == 600
    assert lines == ["previewed 500 of 600\n"]
    with pytest.raises(InvalidConfigError, match=r"none\.yaml: cannot be read"):
        check_file(tmp_path / "none.yaml", [])


def test_a_long_preview_shows_progress(tmp_path: Path) -> None:
    path = tmp_path / "search.yaml"
    searcher = "{name: random, metric: m, max_trials: 2000, max_length: 7}"
    path.write_text(f"name: g\nentrypoint: python3 x.py\nsearcher: {searcher}\n")
    terminal, stderr = pty.openpty()
    program = (
        "import sys; from detcloud.cli import main; from detcloud.cli.rendering import progress;"
        "progress.SHOWN_AFTER_SECONDS = progress.REDRAWN_AFTER_SECONDS = 0.0;"
        "sys.exit(main.main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "preview-search", str(path)],
        env={**os.environ, "TERM": "xterm", "COLUMNS": "79"},
        stdout=subprocess.PIPE,
        stderr=stderr,
        check=True,
        timeout=PROCESS_SECONDS_MAX,
    )
    os.close(stderr)
    drawn = read_terminal(terminal)
    os.close(terminal)
    # The search takes 4,000 answers; after 1,000 answers, 500 trials have ended.
    assert "previewing [#####---------------] 500 trials of 2000 trials" in drawn
    assert drawn.endswith("\r\x1b[K")
    assert done.stdout.decode().endswith("random: 2000 trials, 14000 batches in all\n")
