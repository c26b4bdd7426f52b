"""The rows of figures, counts of decisions, peers, and the output of the bench."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import cli, cluster, peers, trials, writes
from bench.figures import QUICK, Figure, Row, at_least, at_most, beats, number, row_without_value
from bench.machine import Machine, header
from bench.metered_table import Bill
from control_plane.state.table import Expect, Key, Put
from detcloud.shared.processes import Process

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (at_least("", 300, 300, "x"), "met"),
        (at_least("", 299, 300, "x"), "missed"),
        (at_most("", 20, 20, "x"), "met"),
        (at_most("", 21, 20, "x"), "missed"),
        (beats("", 2, 1, "x", beside=""), "met"),
        (beats("", 1, 1, "x", beside=""), "missed"),
        (beats("", 1, None, "x", beside=""), "not measured"),
        (row_without_value("", "why"), "not measured"),
    ],
)
def test_row_has_a_verdict(row: Row, verdict: str) -> None:
    assert row.verdict == verdict


@pytest.mark.parametrize(
    ("value", "text"), [(1234.5, "1,234"), (12.345, "12.3"), (0.1234, "0.123"), (100.0, "100")]
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_decisions_are_the_messages_in_the_journal() -> None:
    body = json.dumps(
        {"in": [{"messages": [["A", {}], ["B", {}]]}, {"messages": [["A", {}]]}], "command": []}
    )
    journal = Put(Key("trial#1", "Z#000000000002"), 1, body.encode(), Expect.ABSENT)
    mail = Put(Key("pool#default", "M#1"), 1, b"{}", Expect.ABSENT)
    account = writes.Account()
    account.take((journal, mail), Bill(9, 100))
    account.take((mail,), Bill(3, 50))  # the agent's session, without processed messages
    assert account.decisions == [3, 0]
    assert account.per_decision() == [3.0]  # 9 units, 3 messages
    assert account.units_per_decision() == 4.0  # 12 units, 3 messages


def test_every_trial_of_a_load_completes() -> None:
    # run() raises an exception for an incomplete trial.
    assert trials.run(trials.Load(20, concurrent=0)) > 0


def test_failed_peer_has_no_rate_and_an_error_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    measured = peers.measure("optuna", 1)
    assert measured.rate is None
    assert "No module named" in measured.text


def test_hanging_peer_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    # The peer exists, but the start takes longer than the limit.
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    measured = peers.measure("optuna", 1, seconds_max=0.01)
    assert measured.text == "not measured: no end after 0 s"


def test_broken_figure_does_not_stop_other_figures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raise_error(scale: object) -> None:
        raise RuntimeError("no luck")

    monkeypatch.setitem(cli.FIGURES, "cluster", raise_error)
    monkeypatch.setitem(cli.FIGURES, "peers", lambda scale: iter([at_least("x", 1, 1, "y")]))
    assert cli.run(["--quick", "--only", "cluster", "--only", "peers"]) == 1
    out = capsys.readouterr().out
    assert "RuntimeError: no luck" in out
    assert " met " in out


@pytest.mark.parametrize(("words", "measured"), [([], "cluster"), (["aws"], "idle")])
def test_deployed_form_is_measured_separately(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    measured: str,
) -> None:
    def figure_of_one_row(name: str) -> Figure:
        return lambda scale: iter([at_least(f"this is {name}", 1, 1, "y")])

    monkeypatch.setattr(
        cli, "FIGURES", {name: figure_of_one_row(name) for name in ("cluster", "idle")}
    )
    assert cli.run(["--quick", *words]) == 0
    out = capsys.readouterr().out
    assert [name for name in ("cluster", "idle") if f"this is {name}" in out] == [measured]


def test_header_warns_about_a_busy_machine() -> None:
    idle = Machine(cores=2, python="3", sqlite="3", system="s", load=1.0, sync_ms=1.0)
    assert "warning" not in header(idle)
    assert "warning: the machine is busy" in header(idle._replace(load=1.1))


def test_small_experiments_meet_the_write_target() -> None:
    rows = {row.what: row for row in writes.writes(QUICK)}
    assert rows["write units per decision, 30 trials"].verdict == "met"


@pytest.mark.nightly
def test_bench_runs_from_any_folder_and_prints_json(tmp_path: Path) -> None:
    line = [sys.executable, str(ROOT / "bench" / "__main__.py"), "--quick", "--json"]
    only = ["--only", "trials", "--only", "commands"]
    done = subprocess.run(
        [*line, *only],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    printed = json.loads(done.stdout)
    assert printed["machine"]["quick"] is True
    assert len(printed["rows"]) == 6
    assert all(row["verdict"] in ("met", "missed") for row in printed["rows"])
    assert "run 1 of 1" in done.stderr


def test_failed_cluster_start_is_a_row_without_value(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import sys; sys.exit('no server here')"
    monkeypatch.setattr(cluster, "CLI", (sys.executable, "-c", program))
    (row,) = cluster.cluster(QUICK)
    assert (row.what, row.verdict) == ("embedded cluster", "not measured")
    assert row.beside == "`detcloud up` ended with 1: no server here"


def test_process_has_the_name_of_its_module_or_program() -> None:
    def name_of(command: str) -> str:
        return cluster.process_name(Process(1, 0, 0, command))

    assert name_of("/usr/bin/python -P -m local_cluster --home /x") == "local_cluster"
    assert name_of("/usr/bin/sh -c true") == "sh"
