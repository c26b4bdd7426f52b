"""Terminal sessions with the shell server, over a real local connection."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from detcloud.cli.local.terminal_session import run_session
from detcloud.shared.errors import DetcloudError
from tests.patience import PROCESS_SECONDS_MAX, wait_until

CLIENT = """
import json, sys
from detcloud.cli.local.terminal_session import run_session
place = json.load(open(sys.argv[1]))
sys.exit(run_session(place["port"], place["token"], sys.argv[2:]))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Start a shell server; yield the path of its file with port and token."""
    home = tmp_path_factory.mktemp("home")
    words = [sys.executable, "-m", "detcloud.launch.shell"]
    # The server ignores SIGINT, like a background process of a script; its programs must not.
    ignored = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        server = subprocess.Popen(words, cwd=home, env={**os.environ, "HOME": str(home)})
    finally:
        signal.signal(signal.SIGINT, ignored)
    with server:
        path = home / "shell.json"
        wait_until(lambda: path.exists() and path.read_text().endswith("}"))
        yield path
        server.terminate()


def run(place: Path, *program: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a program in the shell, from a client process with a pipe as input."""
    words = [sys.executable, "-c", CLIENT, str(place), *program]
    return subprocess.run(
        words, input=given, capture_output=True, timeout=PROCESS_SECONDS_MAX, check=False
    )


def test_passes_on_output_errors_and_exit_code_of_the_program(place: Path) -> None:
    done = run(place, "sh", "-c", "cat; pwd; echo no >&2; exit 3", given=b"\x00\xff\n")
    assert done.stdout == b"\x00\xff\n" + str(place.parent).encode() + b"\n"
    assert (done.stderr, done.returncode) == (b"no\n", 3)


def test_exit_code_survives_much_unread_input(place: Path) -> None:
    assert run(place, "sh", "-c", "exit 5", given=b"x" * 5_000_000).returncode == 5


def test_terminal_passes_keys_and_sizes_and_is_restored(place: Path) -> None:
    ours, theirs = pty.openpty()
    words = [sys.executable, "-c", CLIENT, str(place), "sh", "-c"]
    trap = "trap 'stty size; tty; exit 9' INT"
    script = f"stty size; {trap}; echo ready; while :; do sleep 0.05; done"
    shown = b""

    def read_until(text: bytes) -> None:
        nonlocal shown
        while text not in shown:
            assert select.select([ours], [], [], PROCESS_SECONDS_MAX)[0], shown
            shown += os.read(ours, 65_536)

    before = subprocess.run(["stty", "-g"], stdin=theirs, capture_output=True, check=True).stdout
    subprocess.run(["stty", "rows", "30", "columns", "100"], stdin=theirs, check=True)
    with (
        subprocess.Popen([*words, script], stdin=theirs, stdout=theirs) as client,
        contextlib.ExitStack() as stack,
    ):
        # Only SIGKILL ends the client.
        stack.callback(client.kill)
        read_until(b"ready")
        assert b"30 100" in shown
        subprocess.run(["stty", "rows", "50", "columns", "132"], stdin=theirs, check=True)
        client.send_signal(signal.SIGWINCH)
        # Ctrl-C reaches the program, not the client.
        os.write(ours, b"\x03")
        read_until(b"/dev/")
        assert client.wait(PROCESS_SECONDS_MAX) == 9
    assert b"50 132" in shown
    assert subprocess.run(["stty", "-g"], stdin=theirs, capture_output=True, check=True).stdout == (
        before
    )
    os.close(ours)
    os.close(theirs)


def test_several_terminals_are_open_at_the_same_time(place: Path) -> None:
    with contextlib.ExitStack() as stack:
        clients = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", CLIENT, str(place), "sh", "-c", "echo in; read line"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            )
            for _ in range(3)
        ]
        for client in clients:
            assert client.stdout is not None
            assert client.stdout.readline() == b"in\n"
        for client in clients:
            client.communicate(b"\n", timeout=PROCESS_SECONDS_MAX)
        assert [client.returncode for client in clients] == [0, 0, 0]


def test_a_wrong_token_runs_no_program(place: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "shell.json"
    wrong.write_text(json.dumps({**json.loads(place.read_text()), "token": "guess"}))
    done = run(wrong, "echo", "hello")
    # The exit code is meaningless here: Python maps None to 0. Only the empty output counts.
    assert (done.stdout, done.stderr) == (b"", b"")


def test_a_port_without_a_shell_is_an_error() -> None:
    with pytest.raises(DetcloudError, match="no shell listens on port 1 of this machine"):
        run_session(1, "token", [])
