"""Progress bars: drawn on a terminal's stderr after a second, and never in the output."""

import io
import json
import os
import pty
import subprocess
import sys
from contextlib import redirect_stderr
from pathlib import Path

import pytest

import detcloud as package
from detcloud.cli.rendering.progress import Progress, show_progress
from detcloud.cli.rendering.quantities import bytes_text
from tests.unit.client.fake_cluster import FakeCluster


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def monotonic(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Screen:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    return Screen()


def test_progress_bar_appears_after_a_second_and_is_erased(screen: Screen, clock: Clock) -> None:
    with redirect_stderr(screen), show_progress("fetch", bytes_text, clock.monotonic) as shown:
        shown.update(1, 4)
        assert screen.getvalue() == ""
        clock.seconds += 1
        shown.update(1024, 4096)
        assert screen.getvalue() == "\r\x1b[Kfetch [#####---------------] 1.0 KiB of 4.0 KiB"
        shown.update(2048, 4096)
        assert "2.0 KiB" not in screen.getvalue(), "a tenth of a second has not passed"
        shown.update(4096, 4096)
        assert screen.getvalue().endswith("[####################] 4.0 KiB of 4.0 KiB")
        clock.seconds += 1
        shown.update(5000)
        assert screen.getvalue().endswith("fetch 4.9 KiB")
    assert screen.getvalue().endswith("\r\x1b[K")


def test_wait_line_shows_seconds_and_fits_the_screen(screen: Screen, clock: Clock) -> None:
    with redirect_stderr(screen):
        shown = Progress("experiment 1", clock=clock.monotonic)
        clock.seconds += 12
        shown.show_wait("ACTIVE 25%")
        assert screen.getvalue() == "\r\x1b[Kexperiment 1 ACTIVE 25% 12 s"
        clock.seconds += 1
        shown.show_wait("x" * 100)
    # 60 columns less the last, which would wrap.
    assert len(screen.getvalue().rpartition("\x1b[K")[2]) == 59


def test_without_a_terminal_nothing_is_drawn(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with show_progress("fetch", clock=clock.monotonic) as shown:
        clock.seconds += 10
        shown.update(1, 2)
        shown.show_wait("x")
    assert capsys.readouterr().err == ""


def test_progress_of_a_wait_stays_out_of_stdout(fake: FakeCluster) -> None:
    fake.add_experiment({"name": "digits"}, {"paused": True})
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": str(Path(package.__file__).parents[1])}
    with subprocess.Popen(
        [sys.executable, "-m", "detcloud.cli.main", "wait", "1", "--json", "--polling-interval=.1"],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**environment, "TERM": "xterm"},
    ) as process:
        os.close(theirs)
        drawn = b""
        while b"paused" not in drawn:
            drawn += os.read(ours, 1000)
        fake.experiments[0].update(state="COMPLETED")
        assert process.stdout is not None
        document = json.loads(process.stdout.read())
    os.close(ours)
    assert document["state"] == "COMPLETED"
    assert b"experiment 1 paused 0% [--------------------] " in drawn
    assert process.returncode == 0
