"""Output of `detcloud follow`: lines of changes, or a frame redrawn in place on a terminal."""

import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import detcloud as package
from detcloud.cli.commands.follow import Snapshot, change_lines, render_frame, summary_lines
from tests.patience import PROCESS_SECONDS_MAX
from tests.unit.client.fake_cluster import FakeCluster

EXPERIMENT = {"id": 3, "name": "digits", "state": "ACTIVE", "metric": "loss", "progress": 0.5}


def trial(number: int, **changed: Any) -> dict[str, Any]:
    standard = {
        "id": number,
        "number": number - 1,
        "state": "ACTIVE",
        "hparams": {"lr": 0.5},
        "steps_completed": 50,
        "target_steps": 100,
        "metric": None,
        "restarts": 0,
        "allocation": None,
        "ended_ms": None,
    }
    return {**standard, **changed}


def test_follower_prints_only_changes() -> None:
    before = Snapshot(EXPERIMENT, [trial(1), trial(2)])
    assert change_lines(None, before) == [
        "trial 1: queued, 50 steps",
        "trial 2: queued, 50 steps",
        "experiment 3: running",
    ]
    running = {"allocation": {"state": "RUNNING"}, "steps_completed": 60}
    after = Snapshot(EXPERIMENT, [trial(1, **running), trial(2, steps_completed=70), trial(3)])
    assert change_lines(before, after) == [
        "trial 1: running, 60 steps",
        "trial 3: queued, 50 steps",
    ]
    later = Snapshot({**EXPERIMENT, "state": "PAUSED"}, [trial(2, metric=0.25)])
    assert change_lines(before, later) == [
        "trial 2: queued, 50 steps, loss 0.25",
        "experiment 3: paused",
    ]
    assert change_lines(later, later) == []


def test_a_trial_without_a_target_length_shows_its_steps() -> None:
    snapshot = Snapshot(EXPERIMENT, [trial(1, target_steps=None)])
    assert " 50 steps " in render_frame(snapshot, 100, 10, colour=False)


@pytest.mark.parametrize(
    ("target", "done", "text"),
    [
        (3, 0.0, "[----------] 0/3 epochs"),
        (4, 1.0, "[##--------] 1/4 epochs"),
        (4, 1.26, "[###-------] 1.3/4 epochs"),
        (1, 1.0, "[##########] 1/1 epoch"),
    ],
)
def test_a_trial_with_epochs_shows_its_share_of_epochs(target: int, done: float, text: str) -> None:
    fields = {"target_steps": None, "target_epochs": target, "epochs_completed": done}
    assert f" {text} " in render_frame(
        Snapshot(EXPERIMENT, [trial(1, **fields)]), 100, 10, colour=False
    )


def test_a_frame_fits_the_screen_with_running_trials_first() -> None:
    running = {"state": "RUNNING"}
    trials = [trial(n, ended_ms=1, state="COMPLETED") for n in range(1, 50)]
    trials += [trial(50), trial(51, allocation=running)]
    lines = render_frame(Snapshot(EXPERIMENT, trials), 76, 10, colour=False).splitlines()
    assert lines[0] == "experiment 3 digits  running  50% [##########----------]"
    # 10 lines less 5 for the head, the titles, the rule, the rest and the cursor: 5 trials.
    assert len(lines) == 9
    assert [line.split("|")[0].strip() for line in lines[3:8]] == ["51", "50", "49", "48", "47"]
    assert lines[8] == " ... and 46 more trials"
    assert "[#####-----] 50/100" in lines[3]
    assert max(map(len, lines)) <= 76


def test_waiting_trials_keep_their_order_and_the_rest_is_counted() -> None:
    trials = [trial(1, ended_ms=1, state="COMPLETED"), trial(2), trial(3)]
    lines = render_frame(Snapshot(EXPERIMENT, trials), None, 7, colour=False).splitlines()
    # 7 lines less 5: two trials.
    assert [line.split("|")[0].strip() for line in lines[3:]] == ["2", "3", "... and 1 more trial"]


def test_a_line_counts_failures_of_a_trial() -> None:
    before = Snapshot(EXPERIMENT, [trial(1, steps_completed=1)])
    once = Snapshot(EXPERIMENT, [trial(1, steps_completed=1, restarts=1)])
    twice = Snapshot(EXPERIMENT, [trial(1, restarts=2)])
    assert change_lines(before, once) == ["trial 1: queued, 1 step, failed 1 time"]
    assert change_lines(once, twice) == ["trial 1: queued, 50 steps, failed 2 times"]


def test_a_frame_shows_latest_and_best_metric() -> None:
    snapshot = Snapshot(EXPERIMENT, [trial(1, metric=0.5, best_metric=0.25)])
    titles, _, row = render_frame(snapshot, None, 24, colour=False).splitlines()[1:]
    assert [title.strip() for title in titles.split("|")][4:6] == ["loss", "Best"]
    assert [cell.strip() for cell in row.split("|")][4:6] == ["0.5", "0.25"]


def test_a_best_trial_without_hyperparameters_has_no_colon() -> None:
    ended = {**EXPERIMENT, "state": "COMPLETED", "best_metric": 0.5, "best_trial_id": 1}
    assert summary_lines(Snapshot(ended, [trial(1, hparams={})]))[0] == "best loss 0.5 in trial 1"


def test_summary_names_the_best_trial_and_the_reason() -> None:
    ended = {**EXPERIMENT, "state": "ERROR", "best_metric": 0.125, "best_trial_id": 2}
    snapshot = Snapshot({**ended, "message": "trial 1 failed"}, [trial(1), trial(2)])
    assert summary_lines(snapshot) == [
        "best loss 0.125 in trial 2: lr=0.5",
        "experiment 3 failed: trial 1 failed",
    ]


def test_summary_keeps_the_last_line_of_a_quoted_log() -> None:
    message = "exit code 1; the end of its log:\nTraceback\n  line 3\nValueError: no\n"
    ended = {**EXPERIMENT, "state": "ERROR", "message": message}
    assert summary_lines(Snapshot(ended, [])) == [
        "experiment 3 failed: exit code 1; the end of its log: ValueError: no"
    ]
    long = summary_lines(Snapshot({**ended, "message": "x" * 5000}, []))[0]
    # 400 characters of the message after the prefix.
    assert len(long) == len("experiment 3 failed: ") + 400


def start_on_terminal(*words: str) -> tuple[subprocess.Popen[bytes], int]:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])}
    process = subprocess.Popen(
        [sys.executable, "-m", "detcloud.cli.main", *words],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**environment, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"},
        start_new_session=True,
    )
    os.close(theirs)
    return process, ours


def read_until(descriptor: int, wanted: bytes) -> bytes:
    """Read from `descriptor` until `wanted` was read or the output ends; return all bytes."""
    output = b""
    while wanted not in output:
        try:
            block = os.read(descriptor, 65536)
        except OSError:
            break
        if not block:
            break
        output += block
    return output


def test_a_terminal_is_redrawn_in_place(fake: FakeCluster) -> None:
    fake.add_experiment({"name": "digits"}, {})
    process, terminal = start_on_terminal("follow", "1")
    output = read_until(terminal, b"\0never")
    os.close(terminal)
    assert process.wait(PROCESS_SECONDS_MAX) == 0
    # The first frame has a head, titles, a rule and two trials: five lines to go up again.
    assert b"\x1b[5A\r\x1b[J" in output
    assert b"\x1b[36mrunning" in output
    assert b"best validation_loss" in output.rpartition(b"\x1b[J")[2]


def test_ctrl_c_leaves_the_experiment_running(fake: FakeCluster) -> None:
    fake.add_experiment({"name": "digits"}, {"paused": True})
    process, terminal = start_on_terminal("follow", "1")
    read_until(terminal, b"digits")
    process.send_signal(signal.SIGINT)
    output = read_until(terminal, b"\0never").decode()
    os.close(terminal)
    assert process.wait(PROCESS_SECONDS_MAX) == 130
    assert "experiment 1 continues; watch it again with `detcloud follow 1`" in output
    assert "Traceback" not in output
    assert fake.experiments[0]["state"] == "PAUSED"
    assert all(method == "GET" for method, _ in fake.requests)
