"""The program of shells: a terminal for each connection that has the token, until one side ends."""

from __future__ import annotations

import contextlib
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from detcloud.launch import shell
from detcloud.launch.location import location_path, write_location
from detcloud.shared.launcher_names import unknown_launcher
from detcloud.shared.shell_frames import (
    DATA,
    END,
    ERRORS,
    EXIT,
    SIZE,
    FrameReader,
    Greeting,
    pack_frame,
    pack_size,
    unpack_exit_code,
)
from tests.patience import wait_until

TOKEN = "secret"


class Terminal:
    """The other side of a shell: sends frames, and keeps what is shown."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._reader = FrameReader()
        self.shown = b""
        self.errors = b""
        self.exit_code: int | None = None

    def greet(self, *program: str, token: str = TOKEN, terminal: str = "dumb") -> None:
        self._connection.sendall(Greeting(token, terminal, 24, 80, program).encode())

    def send_bytes(self, sent: bytes) -> None:
        self._connection.sendall(sent)

    def send(self, kind: bytes, payload: bytes = b"") -> None:
        self._connection.sendall(pack_frame(kind, payload))

    def send_all(self, lines: bytes) -> None:
        for place in range(0, len(lines), 32_768):
            self.send(DATA, lines[place : place + 32_768])

    def read_until(self, text: bytes) -> None:
        while text not in self.shown and self._receive():
            pass
        assert text in self.shown, self.shown

    def read_to_the_end(self) -> None:
        while self._receive():
            pass

    def _receive(self) -> bool:
        received = self._connection.recv(65_536)
        for kind, payload in self._reader.feed(received):
            if kind == EXIT:
                self.exit_code = unpack_exit_code(payload)
            elif kind == ERRORS:
                self.errors += payload
            else:
                self.shown += payload
        return bool(received)


@contextmanager
def open_connection() -> Iterator[Terminal]:
    """A connection that a thread serves."""
    ours, theirs = socket.socketpair()

    def serve() -> None:
        with theirs:
            shell._serve_quietly(theirs, TOKEN)

    thread = threading.Thread(target=serve)
    thread.start()
    with ours:
        yield Terminal(ours)
    thread.join()


def test_a_program_has_a_terminal_of_the_windows_size_and_returns_its_code() -> None:
    with open_connection() as terminal:
        terminal.greet("sh", "-c", "stty size; read line; stty size; exit 3")
        terminal.read_until(b"24 80")
        terminal.send(SIZE, pack_size(50, 132))
        terminal.send(DATA, b"\n")
        terminal.read_to_the_end()
    assert b"50 132" in terminal.shown
    assert terminal.exit_code == 3


def test_a_shell_is_started_where_no_program_is_named() -> None:
    with open_connection() as terminal:
        terminal.greet()
        terminal.send(DATA, b"echo $((6 * 7)); tty; exit 4\n")
        terminal.read_to_the_end()
    assert b"42" in terminal.shown
    assert b"/dev/" in terminal.shown
    assert terminal.exit_code == 4


def test_without_a_terminal_output_and_errors_are_apart_and_input_ends() -> None:
    with open_connection() as terminal:
        terminal.greet(terminal="")
        terminal.send(DATA, b"echo $((6 * 7)); tty; echo no >&2")
        terminal.send(END)
        terminal.read_to_the_end()
    assert (terminal.shown, terminal.errors) == (b"42\nnot a tty\n", b"no\n")
    assert terminal.exit_code == 0


@pytest.mark.parametrize("kind", ["", "dumb"])
def test_much_input_and_output_pass_each_other(kind: str) -> None:
    # More than a terminal and a connection hold: who only wrote before reading would wait for ever.
    lines = b"".join(b"%099d\n" % number for number in range(20_000))
    with open_connection() as terminal:
        terminal.greet("sh", "-c", "stty -echo; echo ready; head -n 20000", terminal=kind)
        terminal.read_until(b"ready")
        sender = threading.Thread(target=terminal.send_all, args=(lines,))
        sender.start()
        terminal.read_to_the_end()
        sender.join()
    shown = terminal.shown.replace(b"\r\n", b"\n").removeprefix(b"ready\n")
    assert shown == lines
    assert terminal.exit_code == 0


def test_a_program_that_reads_nothing_may_be_sent_anything() -> None:
    with open_connection() as terminal:
        terminal.greet("true", terminal="")
        terminal.send_all(b"x" * 3_000_000)
        terminal.read_to_the_end()
    assert terminal.exit_code == 0


@pytest.mark.parametrize("greeting", [b"GET / HTTP/1.1\n", b"{}\n", b"[" * 60_000 + b"\n"])
def test_who_does_not_greet_gets_nothing(greeting: bytes) -> None:
    with open_connection() as terminal:
        with contextlib.suppress(ConnectionError):
            terminal.send_bytes(greeting)
            terminal.read_to_the_end()
        assert (terminal.shown, terminal.exit_code) == (b"", None)


def test_without_the_token_nothing_is_started(tmp_path: Path) -> None:
    with open_connection() as terminal:
        terminal.greet("touch", str(tmp_path / "touched"), token="guess")
        terminal.read_to_the_end()
    assert (terminal.shown, terminal.exit_code) == (b"", None)
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("kind", ["", "dumb"])
def test_who_leaves_hangs_up(tmp_path: Path, kind: str) -> None:
    told = tmp_path / "told"
    with open_connection() as terminal:
        # The shell must not write of its killed `sleep`: nobody reads that any more.
        loop = "while :; do sleep 0.05; done"
        script = f"exec 2>/dev/null; trap 'touch {told}; exit' HUP; echo ready; {loop}"
        terminal.greet("sh", "-c", script, terminal=kind)
        terminal.read_until(b"ready")
    wait_until(told.exists)


@pytest.mark.parametrize("kind", ["", "dumb"])
def test_a_program_that_does_not_exist_is_named(kind: str) -> None:
    with open_connection() as terminal:
        terminal.greet("no-such-program", terminal=kind)
        terminal.read_to_the_end()
    expected = b"detcloud: 'no-such-program' cannot be started: No such file or directory"
    assert expected in terminal.shown + terminal.errors
    assert terminal.exit_code == 127


def test_only_its_user_may_read_where_a_program_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_location("shell", port=1, token="t")
    path = location_path("shell")
    assert path == tmp_path / "shell.json"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == '{"port": 1, "token": "t"}'


def test_it_is_no_unknown_launcher() -> None:
    assert unknown_launcher(["python", "-m", "detcloud.launch.shell"]) is None


def test_it_takes_no_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert shell.main(["--port", "80"]) == 2
    assert "usage: python -m detcloud.launch.shell" in capsys.readouterr().err
