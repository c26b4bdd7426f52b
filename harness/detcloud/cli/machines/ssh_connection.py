"""A connection to a machine through OpenSSH's own client, with the user's configuration and keys.

All commands of a connection share one login. OpenSSH itself asks for passphrases and unknown hosts.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple
from urllib.parse import urlsplit

from detcloud.shared.errors import DetcloudError

CONNECT_SECONDS = 15
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*|[0-9A-Fa-f:]+(%[A-Za-z0-9]+)?")
# The exit code of OpenSSH for a failed connection.
_NO_CONNECTION = 255
_HINTS = {
    "Permission denied": "add your key with `ssh-copy-id`, or start `ssh-agent`",
    "Host key verification failed": "connect once with `ssh` and check the key of the host",
    "Could not resolve": "check the name of the host",
    "Connection refused": "check the port, and that sshd runs there",
    "timed out": "check the address and the firewall",
}


class Destination(NamedTuple):
    """A machine named by `ssh://[USER@]HOST[:PORT]`."""

    text: str
    """The text as the user wrote it."""
    host: str
    url: str
    """The destination for OpenSSH's client."""


def parse_destination(text: str) -> Destination:
    """Parse `ssh://[USER@]HOST[:PORT]`, or `[USER@]HOST`.

    Raises:
        ValueError: the text has another form. Options of `ssh` are never accepted.
    """
    try:
        parts = urlsplit(text if "://" in text else f"ssh://{text}")
        host, port, user = parts.hostname or "", parts.port, parts.username
    except ValueError:
        host, port, user = "", None, None
        parts = urlsplit("")
    is_plain = parts.scheme == "ssh" and not parts.path.strip("/") and not parts.query
    is_named = _HOST.fullmatch(host) and (user is None or _USER.fullmatch(user))
    if not is_plain or not is_named or parts.password is not None:
        raise ValueError(f"{text!r} is not a machine; expected a form such as ssh://root@gpu-1:22")
    place = f"[{host}]" if ":" in host else host
    start = "" if user is None else f"{user}@"
    return Destination(text, host, f"ssh://{start}{place}" + ("" if port is None else f":{port}"))


class SshFailed(DetcloudError):
    """OpenSSH could not connect, or a command failed on the machine."""


class Outcome(NamedTuple):
    """The end of a command on a machine."""

    code: int
    output: str
    errors: str


class SshConnection:
    """A shared connection to a machine. Use it as a context manager, which closes the connection.

    The first command opens the connection.
    """

    def __init__(
        self, destination: Destination, options: Sequence[str], *, is_interactive: bool
    ) -> None:
        """Create a connection. Nothing is started yet.

        Args:
            destination: the machine.
            options: values of the option `-o` of OpenSSH.
            is_interactive: whether OpenSSH may ask the user, for example for a passphrase.

        Raises:
            SshFailed: OpenSSH's client is not installed.
        """
        program = shutil.which("ssh")
        if program is None:
            raise SshFailed("OpenSSH's client `ssh` is not installed")
        self._folder = tempfile.TemporaryDirectory(prefix="dc-")
        control = Path(self._folder.name) / "c"
        self._destination = destination
        settings = [
            f"ConnectTimeout={CONNECT_SECONDS}",
            f"BatchMode={'no' if is_interactive else 'yes'}",
            f"ControlPath={control}",
            "ControlMaster=auto",
            "ControlPersist=60",
            "ClearAllForwardings=yes",
            "RequestTTY=no",
            *options,
        ]
        words = [word for setting in settings for word in ("-o", setting)]
        self._command = [program, *words]

    def __enter__(self) -> SshConnection:
        """Return this connection."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the shared connection, and delete the socket."""
        command = [*self._command, "-O", "exit", "--", self._destination.url]
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        self._folder.cleanup()

    def run(
        self,
        command: str,
        content: bytes = b"",
        on_line: Callable[[str], None] = lambda line: None,
    ) -> Outcome:
        """Run a shell command on the machine, and return the exit code and the output.

        Args:
            command: the command.
            content: the standard input of the command.
            on_line: called with each line of the output, as soon as the line arrives.

        Raises:
            SshFailed: the connection failed. The message says what to do.
        """
        with subprocess.Popen(
            [*self._command, "--", self._destination.url, command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            errors: list[bytes] = []
            stderr = process.stderr
            reader = threading.Thread(target=lambda: errors.append(stderr.read()))
            writer = threading.Thread(target=_write_all, args=(process, content))
            for thread in (reader, writer):
                thread.start()
            lines = []
            for line in process.stdout:
                text = line.decode(errors="replace").rstrip("\n")
                lines.append(text)
                on_line(text)
            code = process.wait()
            for thread in (reader, writer):
                thread.join()
        printed = b"".join(errors).decode(errors="replace").strip()
        if code == _NO_CONNECTION:
            raise SshFailed(self._describe_failure(printed))
        return Outcome(code, "\n".join(lines), printed)

    def _describe_failure(self, printed: str) -> str:
        """Return a sentence for a failed connection, with a hint."""
        last = printed.splitlines()[-1].strip() if printed else "ssh printed nothing"
        hint = next((hint for word, hint in _HINTS.items() if word in printed), "")
        text = f"{self._destination.text} cannot be reached: {last}"
        return f"{text}; {hint}" if hint else text


def _write_all(process: subprocess.Popen[bytes], content: bytes) -> None:
    """Write and close the standard input of a process. Ignore an ended process."""
    assert process.stdin is not None
    try:
        process.stdin.write(content)
        process.stdin.close()
    except OSError:
        return
