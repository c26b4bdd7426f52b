from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from control_plane.config.__main__ import main
from control_plane.config.check import check_config
from control_plane.findings import printable_line
from tests.patience import PROCESS_SECONDS_MAX
from tests.unit.config.samples import LENGTH, STEP, change_fields, find_problems, to_yaml

RANDOM = {"name": "random", "metric": "accuracy", "max_steps": 10, "max_trials": 5}


def write_config(folder: Path, text: str) -> str:
    file = folder / "config.yaml"
    file.write_text(text)
    return str(file)


def test_summary_of_a_valid_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = change_fields(STEP, {"searcher": RANDOM, "description": "mine"})
    assert main([write_config(tmp_path, to_yaml(tree))]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "name:            mine",
        "era:             step",
        "searcher:        random (minimizes accuracy)",
        "trials:          5",
        "slots per trial: 1",
        "total:           50 steps",
    ]


def test_summary_of_a_population_counts_all_rounds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    population = {
        "name": "pbt",
        "metric": "accuracy",
        "steps_per_round": 10,
        "population_size": 6,
        "num_rounds": 4,
        "replace_function": {"truncate_fraction": 0.34},
        "explore_function": {"resample_probability": 0.2, "perturb_factor": 0.2},
    }
    assert (
        main([write_config(tmp_path, to_yaml(change_fields(STEP, {"searcher": population})))]) == 0
    )
    lines = capsys.readouterr().out.splitlines()
    # 6 trials, and trunc(0.34 * 6) = 2 copies after each of three rounds; 6 * 4 * 10 steps.
    assert lines[3] == "trials:          12"
    assert lines[5] == "total:           at most 240 steps"


def test_problems_are_printed_one_per_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_config(tmp_path, to_yaml(LENGTH) + "max_restarts: -1\nlabel: [a]\n")
    assert main([file]) == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{file}:7: max_restarts: must be at least 0, not -1",
        f"{file}:8: label: is not a known field (did you mean labels?)",
    ]


def test_json_report_has_problems_and_config(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_config(tmp_path, to_yaml(LENGTH))
    assert main([file, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["era"], report["problems"]) == (True, "length", [])
    assert report["config"]["max_restarts"] == 5
    assert main([file, "--json", "--config", "max_restarts=-1"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["config"]) == (False, None)
    assert report["problems"] == [
        {
            "path": "max_restarts",
            "line": None,
            "value": -1,
            "message": "must be at least 0, not -1",
            "hint": "set by --config",
        }
    ]


def test_migrate_prints_the_length_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([write_config(tmp_path, to_yaml(STEP)), "--migrate"]) == 0
    assert check_config(capsys.readouterr().out).era == "length"
    assert main([write_config(tmp_path, to_yaml(STEP)), "--migrate", "--json"]) == 0
    assert check_config(json.loads(capsys.readouterr().out)["migrated"]).era == "length"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff\xfe", "is not UTF-8 text (byte 0)"),
        (b"a" + "ü".encode() * (1 << 19), "has more than the 1048576 bytes allowed"),
        (None, "cannot be read: No such file"),
    ],
)
def test_unreadable_file_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, reason: str
) -> None:
    file = tmp_path / "config.yaml"
    if content is not None:
        file.write_bytes(content)
    assert main([str(file)]) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{file}: {reason}")


def test_folder_and_invalid_name_are_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 1
    assert main(["a\0b"]) == 1
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_config_module_runs_as_a_command(tmp_path: Path) -> None:
    file = write_config(tmp_path, to_yaml(STEP))
    command = [sys.executable, "-m", "control_plane.config", file]
    ran = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=PROCESS_SECONDS_MAX
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "era:             step" in ran.stdout


STEERING = "\x1b]0;x\x07\x9b31m\u202e\u2066\u200f\u2028\x7f\n"


@pytest.mark.parametrize("flags", [[], ["--json"], ["--migrate"]])
@pytest.mark.parametrize(
    "changes",
    [
        {"name": f"n{STEERING}"},
        {"searcher.metric": f"m{STEERING}"},
        {f"k{STEERING}": 1},
        {"max_restarts": f"v{STEERING}"},
        {"data": {f"k{STEERING}": f"v{STEERING}"}},
        {"environment.image": f"determinedai/environments{STEERING}"},
    ],
)
def test_output_contains_no_control_characters_of_the_file(
    changes: dict[str, object],
    flags: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps(change_fields(LENGTH, changes)))
    main([str(file), *flags])
    out = capsys.readouterr().out
    assert all(line.isprintable() for line in out.split("\n"))


def test_invisible_characters_are_escaped_as_in_json() -> None:
    # The language tag U+E0001 is beyond four digits.
    text = "a\x1b\x7f\u202e\u2028\U000e0001\ud800z"
    line = printable_line(text)
    assert line == r"a\u001b\u007f\u202e\u2028\udb40\udc01\ud800z"
    assert json.loads(f'"{line}"') == text


@pytest.mark.parametrize(
    ("changes", "path", "hint"),
    [
        ({"profiling.end_on_batch": 2}, "profiling.end_on_batch", "did you mean end_after_batch?"),
        ({"resources.slot": 2}, "resources.slot", "did you mean slots"),
        (
            {"environment.environment_variables": ["A"]},
            "environment.environment_variables[0]",
            "write NAME= for an empty value",
        ),
        (
            {"environment.environment_variables": {"A": "b"}},
            "environment.environment_variables.A",
            "write a list of NAME=VALUE, or a map of one for each of cpu, cuda and rocm",
        ),
        ({"searcher.metric": False}, "searcher.metric", "quote it: unquoted yes, no, on and off"),
        ({"name": 5}, "name", "quote it"),
    ],
)
def test_hints_suggest_the_intended_field_or_value(
    changes: dict[str, object], path: str, hint: str
) -> None:
    (problem,) = find_problems(to_yaml(change_fields(LENGTH, changes)))
    assert problem.path == path
    assert problem.hint.startswith(hint)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"resources.deadline": "2020-01-31T18:00:00+01:00"},
            "resources.deadline: has passed: 2020-01-31T18:00:00+01:00",
        ),
    ],
)
def test_check_rejects_passed_deadlines(
    changes: dict[str, object], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_config(tmp_path, to_yaml(change_fields(LENGTH, changes)))
    assert main([file]) == 1
    assert capsys.readouterr().out.startswith(f"{file}: {line}")
    # Migration and preview of the configuration still work.
    assert main([file, "--migrate"]) == 0
    assert main([file, "--preview", "--json"]) == 0
