"""`detcloud dev`: words, refusals before a shell starts, and the end of a lost shell."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from detcloud.cli.commands.dev import DevSession, _run_shells, add_dev_arguments
from detcloud.cli.commands.lost_runs import is_lost
from detcloud.cli.framework.command_parser import CommandParser
from detcloud.client.command import Command
from detcloud.shared.errors import DetcloudError
from tests.unit.cli.conftest import Detcloud
from tests.unit.client.fake_cluster import FakeCluster


@pytest.mark.parametrize(
    ("words", "folder", "slots", "program"),
    [
        ([], ".", None, []),
        (["digits", "--slots", "2"], "digits", 2, []),
        (["--slots", "2", "digits"], "digits", 2, []),
        (["--", "python", "-c", "1", "--", "2"], ".", None, ["python", "-c", "1", "--", "2"]),
        (["digits", "--slots", "0", "--", "ls", "--slots"], "digits", 0, ["ls", "--slots"]),
    ],
)
def test_program_follows_two_hyphens(
    words: list[str], folder: str, slots: int | None, program: list[str]
) -> None:
    parser = CommandParser(prog="detcloud dev")
    add_dev_arguments(parser)
    parsed = parser.parse_command(words)
    assert (str(parsed.folder), parsed.slots, parsed.program) == (folder, slots, program)


def test_missing_folder_is_refused(fake: FakeCluster, detcloud: Detcloud, tmp_path: Path) -> None:
    done = detcloud("dev", str(tmp_path / "missing"))
    assert done.code == 1
    assert "missing is not a folder" in done.err
    assert fake.experiments == []


@pytest.mark.parametrize("variable", ["HOME", "DETCLOUD_HOME"])
def test_folder_with_secrets_is_refused(
    fake: FakeCluster,
    detcloud: Detcloud,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
) -> None:
    folder = tmp_path / "work"
    (folder / "home").mkdir(parents=True)
    monkeypatch.setenv(variable, str(folder / "home"))
    done = detcloud("dev", str(folder))
    assert done.code == 1
    assert f"work contains {folder}/home" in done.err
    assert fake.experiments == []


def test_code_excludes_a_program(fake: FakeCluster, detcloud: Detcloud, tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    done = detcloud("dev", str(tmp_path / "work"), "--code", "--", "ls")
    assert done.code == 1
    assert "--code opens VS Code" in done.err


@pytest.mark.parametrize(
    ("state", "losses", "expected"),
    [("ERROR", 1, True), ("ERROR", 0, False), ("CANCELED", 1, False), ("ERROR", None, False)],
)
def test_shell_is_lost_with_its_machine(state: str, losses: int | None, expected: bool) -> None:
    trial = None if losses is None else SimpleNamespace(losses=losses)
    shell = cast("Command", SimpleNamespace(state=state, trial=lambda: trial))
    assert is_lost(shell) is expected


def dev_arguments(folder: Path, **options: Any) -> Any:
    defaults: dict[str, Any] = {
        "max_file_size": 1,
        "keep": False,
        "attach": None,
        "rerun": False,
        "program": [],
    }
    return SimpleNamespace(folder=folder, **{**defaults, **options})


class FakeShell:
    """A shell that records whether it was killed."""

    id = 5

    def __init__(self, has_ended: bool = False) -> None:
        self.has_ended = has_ended
        self.is_killed = False

    def refresh(self) -> None:
        pass

    def kill(self) -> None:
        self.is_killed = True


@pytest.mark.parametrize(
    ("is_safe", "keep", "killed"),
    [(True, False, True), (True, True, False), (False, False, False)],
)
def test_shell_is_killed_only_if_nothing_is_missing_here(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], is_safe: bool, keep: bool, killed: bool
) -> None:
    session = DevSession(dev_arguments(tmp_path, keep=keep))
    session._is_safe = is_safe
    session._missing = [] if is_safe else ["a", "b"]
    shell = FakeShell()
    session._leave(cast("Command", shell))
    assert shell.is_killed is killed
    error = capfd.readouterr().err
    assert ("detcloud dev --attach 5" in error) is not killed
    assert ("this machine lacks a, b" in error) is not is_safe


class LostSessions:
    """A session whose shells are lost, some before the terminal opened."""

    def __init__(self, opened: list[bool], code: int = 0) -> None:
        self.opened, self.code = opened, code
        self.shells = 0
        self.has_opened = False

    def open_shell(self) -> SimpleNamespace:
        self.shells += 1
        trial = SimpleNamespace(losses=1)
        return SimpleNamespace(id=self.shells, state="ERROR", trial=lambda: trial)

    def run_session(self, shell: SimpleNamespace) -> int | None:
        if not self.opened:
            return self.code
        self.has_opened = self.opened.pop(0)
        return None


def run_lost(session: LostSessions, **options: Any) -> int:
    return _run_shells(cast("DevSession", session), dev_arguments(Path("work"), **options))


def test_terminal_opens_again_after_losses() -> None:
    session = LostSessions([True, True], code=4)
    assert run_lost(session) == 4
    assert session.shells == 3


@pytest.mark.parametrize(("answer", "code", "shells"), [("y\n", 4, 2), ("\n", 1, 1), ("", 1, 1)])
def test_program_runs_again_after_a_yes(
    monkeypatch: pytest.MonkeyPatch, answer: str, code: int, shells: int
) -> None:
    terminal = io.StringIO(answer)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", terminal)
    session = LostSessions([True], code=4)
    assert run_lost(session, program=["train"]) == code
    assert session.shells == shells


def test_program_without_terminal_runs_again_only_with_rerun(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    session = LostSessions([True], code=4)
    with pytest.raises(DetcloudError, match=r"`train a` may have run in part.*--rerun"):
        run_lost(session, program=["train", "a"])
    assert session.shells == 1
    assert run_lost(LostSessions([True], code=4), program=["train"], rerun=True) == 4


def test_program_that_never_began_needs_no_question() -> None:
    assert run_lost(LostSessions([False], code=4), program=["train"]) == 4


def test_many_losses_during_the_start_end_the_command() -> None:
    session = LostSessions([False] * 99)
    with pytest.raises(DetcloudError, match="5 machines in a row"):
        run_lost(session)
    assert session.shells == 5
