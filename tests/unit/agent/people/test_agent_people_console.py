"""Logins at the console, from the records of systemd's logind and of utmp."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from detcloud.agent.people.console import UTMP_BYTES, has_login_records, is_console_used

# A session of a desktop, as logind writes the file, without the fields that no code reads.
DESKTOP = """\
# This is private data. Do not parse.
UID=1000
USER=ada
ACTIVE=1
IS_DISPLAY=1
STATE=active
REMOTE=0
TYPE=wayland
CLASS=user
SEAT=seat0
TTY=tty2
"""
SSH = DESKTOP.replace("SEAT=seat0\n", "").replace("REMOTE=0", "REMOTE=1")


def write_session(root: Path, text: str, name: str = "2") -> None:
    folder = root / "run/systemd/sessions"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("text", "used"),
    [
        (DESKTOP, True),
        # A user who switched to another user's session.
        (DESKTOP.replace("STATE=active", "STATE=online"), True),
        (DESKTOP.replace("CLASS=user", "CLASS=user-early"), True),
        (DESKTOP.replace("STATE=active", "STATE=closing"), False),
        # The login screen.
        (DESKTOP.replace("CLASS=user", "CLASS=greeter"), False),
        (SSH, False),
        # A service or cron job.
        (DESKTOP.replace("SEAT=seat0\n", ""), False),
        ("", False),
        ("\0\xff no field", False),
    ],
)
def test_session_at_a_seat_counts(tmp_path: Path, text: str, used: bool) -> None:
    write_session(tmp_path, text)
    assert is_console_used(tmp_path) is used


def test_any_session_counts(tmp_path: Path) -> None:
    write_session(tmp_path, SSH, "1")
    write_session(tmp_path, DESKTOP, "c3")
    assert is_console_used(tmp_path)


def test_pipes_and_unfinished_files_are_not_read(tmp_path: Path) -> None:
    write_session(tmp_path, SSH)
    os.mkfifo(tmp_path / "run/systemd/sessions/2.ref")
    write_session(tmp_path, DESKTOP, ".#3abc")
    assert not is_console_used(tmp_path)


def write_utmp(root: Path, *records: tuple[int, int, str, str]) -> None:
    """Write records of type, process, line and user."""
    (root / "run").mkdir(exist_ok=True)
    size = UTMP_BYTES.get(os.uname().machine, 384)
    rows = [
        struct.pack("=hxxi32s4s32s", kind, process, line.encode(), b"", user.encode())
        for kind, process, line, user in records
    ]
    (root / "run/utmp").write_bytes(b"".join(row.ljust(size, b"\0") for row in rows))


@pytest.mark.parametrize(
    ("record", "used"),
    [
        ((7, os.getpid(), "tty1", "ada"), True),
        ((7, os.getpid(), ":0", "ada"), True),
        # ssh and terminal windows.
        ((7, os.getpid(), "pts/0", "ada"), False),
        ((8, os.getpid(), "tty1", ""), False),
        ((6, os.getpid(), "tty1", "LOGIN"), False),
        ((2, 0, "~", "reboot"), False),
    ],
)
def test_utmp_is_read_without_logind(
    tmp_path: Path, record: tuple[int, int, str, str], used: bool
) -> None:
    write_utmp(tmp_path, (7, os.getpid(), "pts/9", "bob"), record)
    assert is_console_used(tmp_path) is used


def test_record_of_an_ended_process_does_not_count(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    write_utmp(tmp_path, (7, ended.pid, "tty1", "ada"))
    assert not is_console_used(tmp_path)


def test_damaged_records_are_ignored(tmp_path: Path) -> None:
    write_utmp(tmp_path)
    (tmp_path / "run/utmp").write_bytes(b"\7\0" * 100)
    assert not is_console_used(tmp_path)


def test_machine_without_records_is_recognised(tmp_path: Path) -> None:
    assert not has_login_records(tmp_path)
    assert not is_console_used(tmp_path)
    write_utmp(tmp_path)
    assert has_login_records(tmp_path)
