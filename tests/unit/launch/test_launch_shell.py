"""The program of shells: a terminal for each connection that has the token, until one side ends."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from detcloud.launch import greetings, shell
from detcloud.launch.greetings import GreetedConnection, GreetingReader, Lobby
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
from tests.patience import ANSWER_SECONDS_MAX, wait_until

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

    def read_errors_until(self, text: bytes) -> None:
        while text not in self.errors and self._receive():
            pass
        assert text in self.errors, self.errors

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
        reader, found = GreetingReader(TOKEN), None
        with theirs, contextlib.suppress(ValueError, ConnectionError):
            while found is None and (received := theirs.recv(65_536)):
                found = reader.feed(received)
            if found is not None:
                shell._serve_quietly(GreetedConnection(theirs, *found))

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


REDIRECTED = "exec >/dev/null 2>&1; "
UNREAD = "exec </dev/null >/dev/null 2>&1; "


@pytest.mark.parametrize("redirection", [REDIRECTED, UNREAD])
@pytest.mark.parametrize("kind", ["", "dumb"])
def test_a_program_that_redirected_its_output_is_hung_up(
    tmp_path: Path, kind: str, redirection: str
) -> None:
    told, ready = tmp_path / "told", tmp_path / "ready"
    with open_connection() as terminal:
        loop = f"touch {ready}; while :; do sleep 0.05; done"
        script = f"trap 'touch {told}; exit' HUP; {redirection}{loop}"
        terminal.greet("sh", "-c", script, terminal=kind)
        wait_until(ready.exists)
    wait_until(told.exists)


@pytest.mark.parametrize("kind", ["", "dumb"])
def test_a_program_that_redirected_its_output_runs_to_its_end(tmp_path: Path, kind: str) -> None:
    with open_connection() as terminal:
        script = f"exec >{tmp_path / 'out'} 2>&1; read line; echo got $line; exit 5"
        terminal.greet("sh", "-c", script, terminal=kind)
        wait_until((tmp_path / "out").exists)
        terminal.send(DATA, b"hello\n")
        terminal.read_to_the_end()
    assert (tmp_path / "out").read_text() == "got hello\n"
    assert terminal.exit_code == 5


@pytest.fixture
def port() -> Iterator[int]:
    """The port of a program of shells, in a process of its own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = os.fork()
        if process == 0:
            with contextlib.suppress(BaseException):
                shell.accept_connections(listener, TOKEN)
            os._exit(1)
        yield listener.getsockname()[1]
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


@contextmanager
def connect(port: int) -> Iterator[Terminal]:
    with socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS_MAX) as connection:
        yield Terminal(connection)


def test_strangers_take_no_place_of_the_owner(port: int) -> None:
    with contextlib.ExitStack() as stack:
        for _ in range(2 * shell.SESSIONS_MAX):
            stack.enter_context(connect(port)).send_bytes(b"{")
        with connect(port) as owner:
            owner.greet("echo", "hi", terminal="")
            owner.read_to_the_end()
        assert (owner.shown, owner.exit_code) == (b"hi\n", 0)


def test_who_drips_a_greeting_is_left_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greetings, "GREETING_SECONDS_MAX", 0.3)
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        socket.create_connection(listener.getsockname(), ANSWER_SECONDS_MAX) as dripping,
    ):
        lobby = Lobby(listener, TOKEN)

        def is_closed() -> bool:
            with contextlib.suppress(ConnectionError):
                # Each byte would begin a limit for a single read anew.
                dripping.sendall(b" ")
                assert lobby.receive(0.02) == []
                dripping.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    return dripping.recv(1) == b""
                return False
            return True

        wait_until(is_closed)
        lobby.close()


def test_a_further_stranger_ends_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(greetings, "STRANGERS_MAX", 2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        lobby = Lobby(listener, TOKEN)
        opened = []
        for _ in range(3):
            opened.append(socket.create_connection(listener.getsockname(), ANSWER_SECONDS_MAX))
            lobby.receive(ANSWER_SECONDS_MAX)
        assert opened[0].recv(1) == b""
        opened[2].sendall(Greeting(TOKEN, "", 0, 0).encode() + b"more")
        [greeted] = lobby.receive(ANSWER_SECONDS_MAX)
        assert (greeted.greeting.token, greeted.received) == (TOKEN, b"more")
        for connection in (*opened, greeted.connection):
            connection.close()
        lobby.close()


def test_a_session_too_many_is_told_that_it_waits(port: int) -> None:
    with contextlib.ExitStack() as stack:
        others = []
        for _ in range(shell.SESSIONS_MAX):
            other = stack.enter_context(connect(port))
            other.greet("sh", "-c", "echo ready; read line", terminal="")
            other.read_until(b"ready")
            others.append(other)
        last = stack.enter_context(connect(port))
        last.greet("echo", "hi", terminal="")
        last.read_errors_until(b"waits for the end of another")
        others[0].send(END)
        last.read_to_the_end()
        assert last.shown == b"hi\n"


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
