from __future__ import annotations

import json
import signal
from typing import Any

import pytest

from detcloud.agent.allocation.exit_record import exit_record
from detcloud.agent.runtime import Phase, Status


@pytest.mark.parametrize(
    ("status", "exits", "reason"),
    [
        (Status(Phase.ENDED, "trial", 0), [{"reason": "completed"}], "completed"),
        (Status(Phase.ENDED, "trial", 0), [], "errored"),
        (Status(Phase.ENDED, "trial", 1), [{"reason": "idle"}], "idle"),
        # Code after a reported completion counts, too.
        (Status(Phase.ENDED, "trial", 1), [{"reason": "completed"}], "errored"),
        (Status(Phase.ENDED, "trial", 1), [{"reason": "stop_requested"}], "errored"),
        (Status(Phase.ENDED, "trial", None, 11), [{"reason": "completed"}], "errored"),
        (
            Status(Phase.ENDED, "trial", None, 9, killed=True),
            [{"reason": "completed"}],
            "completed",
        ),
        (Status(Phase.ENDED, lost=True), [{"reason": "completed"}], "completed"),
        (Status(Phase.ENDED, "trial", None, 9, killed=True), [], "killed"),
        (Status(Phase.ENDED, "trial", 1, killed=True), [{"reason": "errored"}], "killed"),
        (Status(Phase.ENDED, "trial", 0, killed=True), [{"reason": "preempted"}], "preempted"),
        (Status(Phase.ENDED, lost=True), [], "lost"),
        (
            Status(Phase.ENDED, "trial", 1),
            [{"reason": "preempted"}, {"reason": "errored"}],
            "errored",
        ),
        # Ranks fail if a rank refuses the hyperparameters; the refusal counts in any order.
        (
            Status(Phase.ENDED, "trial", 1),
            [{"reason": "errored"}, {"reason": "invalid_hp"}, {"reason": "errored"}],
            "invalid_hp",
        ),
        (
            Status(Phase.ENDED, "trial", 1, killed=True),
            [{"reason": "invalid_hp"}, {"reason": "errored"}],
            "invalid_hp",
        ),
    ],
)
def test_reason_of_an_exit(status: Status, exits: list[dict[str, Any]], reason: str) -> None:
    assert exit_record(status, exits, "", revision=3)["reason"] == reason


def test_message_of_a_silent_failure_quotes_the_log() -> None:
    status = Status(Phase.ENDED, "trial", code=2)
    record = exit_record(status, [{"reason": "errored"}], "no such data\n", revision=3)
    assert record["message"] == (
        "the trial's process ended with exit code 2; the end of its log:\nno such data\n"
    )
    message = exit_record(Status(Phase.ENDED, "trial", code=0), [], "", revision=3)["message"]
    assert (
        message
        == "the trial's process ended with exit code 0 and reported no exit; its log is empty"
    )


def test_message_of_a_failure_after_a_reported_completion() -> None:
    status = Status(Phase.ENDED, "trial", code=1)
    record = exit_record(status, [{"reason": "completed"}], "ValueError: no plot\n", revision=3)
    assert record["message"] == (
        "the trial's process ended with exit code 1 after it reported a good end; the end of its "
        "log:\nValueError: no plot\n"
    )


def test_message_omits_the_first_log_line_of_detcloud() -> None:
    began = "[detcloud] run 2 of trial 4, from the beginning\n"
    status = Status(Phase.ENDED, "trial", code=3)
    message = exit_record(status, [], began, revision=3)["message"]
    assert message == "the trial's process ended with exit code 3; its log is empty"
    message = exit_record(status, [], f"{began}no data\n", revision=3)["message"]
    assert message == "the trial's process ended with exit code 3; the end of its log:\nno data\n"


def test_exit_code_above_128_is_named_as_a_signal() -> None:
    # A shell turns signal 9 into the exit code 128 + 9 = 137.
    message = exit_record(Status(Phase.ENDED, "trial", code=137), [], "", revision=3)["message"]
    ending = "ended with exit code 137, that is SIGKILL (out of memory?); its log is empty"
    assert message == f"the trial's process {ending}"


def test_message_of_a_signal_names_signal_and_log() -> None:
    status = Status(Phase.ENDED, "trial", None, signal.SIGKILL)
    record = exit_record(status, [], "last words", revision=3)
    assert record["message"].startswith("the trial's process was ended by SIGKILL (out of memory?)")
    assert record["message"].endswith("last words")
    assert record["directive_revision"] == 3


def test_malformed_exit_of_a_trial_becomes_valid_json() -> None:
    status = Status(Phase.ENDED, "trial", 1)
    trial_exit = {"reason": ["x"], "directive_revision": 10**400, "message": "no file a\udcff"}
    record = exit_record(status, [trial_exit], "", revision=3)
    assert (record["reason"], record["message"]) == ("errored", "no file a?")
    assert record["directive_revision"] == 3
    assert json.dumps(record, ensure_ascii=False).encode()


def test_exit_record_contains_the_termination_notice() -> None:
    status = Status(Phase.ENDED, code=0, stage="trial")
    exits = [{"reason": "preempted", "directive_revision": 2}]
    record = exit_record(status, exits, "", revision=1, notice="spot" + "x" * 300)
    assert record["notice"] == "spot" + "x" * 196
    assert "notice" not in exit_record(status, exits, "", revision=1)


@pytest.mark.parametrize(
    ("notice", "exits", "outcome"),
    [
        ("spot", [{"reason": "preempted", "notice_outcome": "saved"}], "saved"),
        # A different node's machine ends: the chief reports the outcome as well.
        ("", [{"reason": "preempted", "notice_outcome": "kept"}], "kept"),
        ("spot", [{"reason": "preempted"}, {"notice_outcome": "finished"}], "finished"),
        ("spot", [{"reason": "preempted"}], None),
        ("spot", [{"reason": "preempted", "notice_outcome": ["saved"]}], None),
        ("spot", [{"reason": "preempted", "notice_outcome": "cut"}], None),
        # The trial had to leave, and failed or was killed first.
        ("spot", [{"reason": "errored"}], "cut"),
        ("spot", [], "cut"),
        ("spot", [{"reason": "idle"}], None),
        ("", [], None),
    ],
)
def test_outcome_of_a_notice(notice: str, exits: list[dict[str, Any]], outcome: str | None) -> None:
    record = exit_record(Status(Phase.ENDED, "trial", 1), exits, "", revision=1, notice=notice)
    assert record.get("notice_outcome") == outcome
