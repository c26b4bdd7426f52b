"""Machines of the command line, and connections through OpenSSH's client."""

from __future__ import annotations

from pathlib import Path

import pytest

from detcloud.cli.machines.ssh_connection import SshConnection, SshFailed, parse_destination

SSH = """#!/bin/sh
for word in "$@"; do last=$word; done
case "$last" in
    refuse) echo "x@y: Permission denied (publickey)." >&2; exit 255 ;;
    echo) cat; echo done >&2; exit 3 ;;
esac
"""


@pytest.mark.parametrize(
    ("text", "url", "host"),
    [
        ("ssh://gpu-1", "ssh://gpu-1", "gpu-1"),
        ("root@gpu-1", "ssh://root@gpu-1", "gpu-1"),
        ("ssh://root@10.0.0.7:2222", "ssh://root@10.0.0.7:2222", "10.0.0.7"),
        ("ssh://root@[fd00::1]:22", "ssh://root@[fd00::1]:22", "fd00::1"),
    ],
)
def test_machines_are_parsed(text: str, url: str, host: str) -> None:
    assert parse_destination(text)[1:] == (host, url)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-oProxyCommand=sh",
        "ssh://-oProxyCommand=sh",
        "ssh://-l@host",
        "ssh://root:secret@host",
        "http://host",
        "ssh://host/path",
        "ssh://host:port",
        "ssh://host;sh",
        "ssh://a b",
    ],
)
def test_options_and_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a machine"):
        parse_destination(text)


@pytest.fixture
def connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SshConnection:
    program = tmp_path / "ssh"
    program.write_text(SSH)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return SshConnection(parse_destination("gpu-1"), [], is_interactive=False)


def test_command_gets_content_and_returns_output(connection: SshConnection) -> None:
    lines: list[str] = []
    with connection:
        outcome = connection.run("echo", b"one\ntwo\n", lines.append)
    assert outcome == (3, "one\ntwo", "done")
    assert lines == ["one", "two"]


def test_refused_login_names_a_remedy(connection: SshConnection) -> None:
    with connection, pytest.raises(SshFailed, match=r"Permission denied.*ssh-copy-id"):
        connection.run("refuse", b"x" * 1_000_000)


def test_missing_client_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SshFailed, match="not installed"):
        SshConnection(parse_destination("gpu-1"), [], is_interactive=False)
