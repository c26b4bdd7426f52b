"""The sessions of an SSH connection: programs with a terminal or with pipes."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import shutil
import signal
import struct
import termios
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from typing import Any

import asyncssh

READ_BYTES = 65_536
NOT_STARTED = 127
LAST_OUTPUT_SECONDS = 0.2
"""The time for the output of an ended program, while others keep the terminal open."""
END_OF_FILE = b"\x04"
"""The key Ctrl-D."""
_CLIENT_VARIABLES = ("LANG", "COLORTERM")
_LOCALE_PREFIX = "LC_"


async def run_session(process: asyncssh.SSHServerProcess[bytes]) -> None:
    """Run the command or shell of a session, and send the exit code.

    With a terminal, the session ends with the program. Without a terminal, it ends when no process
    has its output open, as with OpenSSH's server. After a lost connection, a terminal hangs up.
    """
    if process.subsystem is not None:
        process.stderr.write(f"detcloud: no subsystem {process.subsystem!r}\n".encode())
        process.exit(NOT_STARTED)
        return
    shell = find_shell(os.environ)
    words = [shell] if process.command is None else [shell, "-c", process.command]
    try:
        code = await (_run_in_terminal if process.term_type else _run_piped)(process, words)
    except OSError as error:
        process.stderr.write(f"detcloud: {shell} could not be started: {error}\n".encode())
        code = NOT_STARTED
    if code < 0:
        process.exit_with_signal(signal.Signals(-code).name.removeprefix("SIG"))
    else:
        process.exit(code)


def find_shell(environment: Mapping[str, str]) -> str:
    """Return the user's shell, or else bash or sh."""
    names = (environment.get("SHELL") or "bash", "bash")
    return next(filter(None, map(shutil.which, names)), "/bin/sh")


def session_variables(process: asyncssh.SSHServerProcess[bytes]) -> dict[str, str]:
    """Return the variables of the trial, with terminal, agent and locale of the client."""
    given = {
        name: value
        for name, value in _text_items(process.env)
        if name in _CLIENT_VARIABLES or name.startswith(_LOCALE_PREFIX)
    }
    variables = {**os.environ, **given}
    if process.term_type:
        variables["TERM"] = process.term_type
    if agent := process.channel.get_agent_path():
        variables["SSH_AUTH_SOCK"] = agent
    return variables


async def _run_in_terminal(process: asyncssh.SSHServerProcess[bytes], words: list[str]) -> int:
    """Run a program in a new terminal, and return the exit code."""
    master, slave = pty.openpty()
    program: Process | None = None
    try:
        _resize(master, process.term_size)
        variables = {**session_variables(process), "SSH_TTY": os.ttyname(slave)}
        program = await asyncio.create_subprocess_exec(
            *words,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=variables,
            preexec_fn=lambda: _enter_terminal(slave),
        )
        os.close(slave)
        slave = -1
        os.set_blocking(master, False)
        sending = asyncio.create_task(_send_terminal(process, master, program))
        receiving = asyncio.create_task(_receive_terminal(process, master))
        ending = asyncio.create_task(program.wait())
        await asyncio.wait([sending, ending], return_when=asyncio.FIRST_COMPLETED)
        # Programs in the background may keep the terminal open.
        await asyncio.wait([receiving], timeout=LAST_OUTPUT_SECONDS)
        for task in (sending, receiving, ending):
            task.cancel()
        await asyncio.gather(sending, receiving, ending, return_exceptions=True)
        return -signal.SIGHUP if program.returncode is None else program.returncode
    finally:
        # The closed terminal also makes the kernel signal its programs.
        _hang_up(program)
        for descriptor in (master, slave):
            if descriptor >= 0:
                os.close(descriptor)


async def _run_piped(process: asyncssh.SSHServerProcess[bytes], words: list[str]) -> int:
    """Run a program with pipes, and return the exit code."""
    program = await asyncio.create_subprocess_exec(
        *words,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=session_variables(process),
        start_new_session=True,
        preexec_fn=restore_signals,
        limit=READ_BYTES,
    )
    sending = asyncio.create_task(_send_piped(process, program))
    ending = asyncio.create_task(_receive_piped(process, program))
    try:
        await asyncio.wait([sending, ending], return_when=asyncio.FIRST_COMPLETED)
        return ending.result() if ending.done() else -signal.SIGHUP
    finally:
        _hang_up(program)
        for task in (sending, ending):
            task.cancel()
        await asyncio.gather(sending, ending, return_exceptions=True)


def restore_signals() -> None:
    """Restore the default action of every ignored signal.

    An agent that a script starts in the background ignores Ctrl-C, and programs would inherit this.
    """
    for number in signal.valid_signals():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)


def _enter_terminal(slave: int) -> None:
    restore_signals()
    os.login_tty(slave)


async def _send_terminal(
    process: asyncssh.SSHServerProcess[bytes], master: int, program: Process
) -> None:
    """Write the client's keys to the terminal, and apply sizes and signals.

    At the end of the input, send an end of file. Return after the client has closed the session.
    """
    while data := await _next_input(process, program, master) or END_OF_FILE:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(master, rest) :]
            except BlockingIOError:
                await _wait_for(master, is_write=True)
            except OSError:
                break
        if data is END_OF_FILE:
            break
    await process.wait_closed()


async def _receive_terminal(process: asyncssh.SSHServerProcess[bytes], master: int) -> None:
    """Send the terminal's output to the client, until no program has the terminal open."""
    while True:
        try:
            data = os.read(master, READ_BYTES)
        except BlockingIOError:
            await _wait_for(master, is_write=False)
            continue
        except OSError:
            return
        if not data:
            return
        process.stdout.write(data)
        await process.stdout.drain()


async def _send_piped(process: asyncssh.SSHServerProcess[bytes], program: Process) -> None:
    """Write the client's input to the program, until the end of the input.

    Return after the client has closed the session.
    """
    assert program.stdin is not None
    with contextlib.suppress(ConnectionError):
        while data := await _next_input(process, program, None):
            program.stdin.write(data)
            await program.stdin.drain()
    program.stdin.close()
    await process.wait_closed()


async def _receive_piped(process: asyncssh.SSHServerProcess[bytes], program: Process) -> int:
    """Send the program's outputs to the client until both end, and return the exit code."""
    assert program.stdout is not None
    assert program.stderr is not None
    await asyncio.gather(
        _copy(program.stdout, process.stdout), _copy(program.stderr, process.stderr)
    )
    return await program.wait()


async def _next_input(
    process: asyncssh.SSHServerProcess[bytes], program: Process, master: int | None
) -> bytes:
    """Return the next input of the client, after applying sizes and signals. b"" at the end."""
    while True:
        try:
            received: bytes = await process.stdin.read(READ_BYTES)
            return received
        except asyncssh.TerminalSizeChanged as changed:
            if master is not None:
                _resize(master, (changed.width, changed.height, 0, 0))
        except asyncssh.SignalReceived as received:
            _send_signal(program, received.signal)
        except asyncssh.BreakReceived:
            continue
        except (asyncssh.Error, ConnectionError):
            return b""


def _hang_up(program: Process | None) -> None:
    """Send SIGHUP to the group of a program that still runs after the client has left.

    Otherwise the program might keep a GPU. A program that must go on is started with `nohup`.
    """
    if program is not None and program.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGHUP)


def _send_signal(program: Process, name: str) -> None:
    """Send a signal of the client to the program's group. Ignore an unknown name."""
    number = getattr(signal, f"SIG{name}", None)
    if isinstance(number, signal.Signals):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, number)


async def _copy(source: asyncio.StreamReader, sink: asyncssh.SSHWriter[bytes]) -> None:
    """Send an output of the program to the client, until either ends."""
    with contextlib.suppress(OSError, asyncssh.Error):
        while data := await source.read(READ_BYTES):
            sink.write(data)
            await sink.drain()


async def _wait_for(descriptor: int, *, is_write: bool) -> None:
    """Wait until a descriptor can be read or written."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def note() -> None:
        if not ready.done():
            ready.set_result(None)

    add = loop.add_writer if is_write else loop.add_reader
    remove = loop.remove_writer if is_write else loop.remove_reader
    add(descriptor, note)
    try:
        await ready
    finally:
        remove(descriptor)


def _resize(master: int, size: tuple[int, int, int, int]) -> None:
    """Set the columns and rows of a terminal. Do nothing for 0."""
    columns, rows = size[:2]
    if columns and rows:
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _text_items(environment: Mapping[Any, Any]) -> list[tuple[str, str]]:
    """Return variables as text. The client may send other bytes, which are dropped."""
    items = []
    for pair in environment.items():
        with contextlib.suppress(UnicodeDecodeError):
            name, value = (x.decode() if isinstance(x, bytes) else str(x) for x in pair)
            items.append((name, value))
    return items
