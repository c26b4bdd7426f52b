"""`detcloud server`: the process, the status, the unit of systemd and the output of a start."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from detcloud.cli.commands import server_install
from detcloud.cli.local.systemd_unit import quote
from tests.conftest import miss
from tests.integration.embedded_cluster import environment
from tests.unit.cli.conftest import Detcloud


def render_unit_text(detcloud: Detcloud, *words: str) -> str:
    """Return the unit that `server install --print` prints, without the line of the path."""
    done = detcloud("server", "install", "--print", *words)
    assert (done.code, done.err) == (0, "")
    first, _, unit = done.out.partition("\n")
    assert first == "# /etc/systemd/system/detcloud.service"
    return unit


def test_run_becomes_the_server(
    detcloud: Detcloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    def record(path: str, words: list[str], environment: dict[str, str]) -> None:
        started.append(words)
        assert environment["DETCLOUD_STATE"] == "postgresql://u:secret@db/lab"
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", record)
    options = ["--data", "data", "--listen", "10.0.0.1:9000", "--no-agent", "--backup-to", "b"]
    options += ["--proxy", "10.0.0.2", "--proxy", "10.0.0.3", "--prefix", "/lab"]
    detcloud("server", "run", *options, "--state", "postgresql://u:secret@db/lab")
    [words] = started
    assert words[:4] == [sys.executable, "-P", "-m", "local_cluster"]
    assert words[4:] == [
        *("--home", str(tmp_path / "data"), "--listen", "10.0.0.1:9000", "--prefix", "/lab"),
        *("--backup-to", str(tmp_path / "b"), "--proxy", "10.0.0.2", "--proxy", "10.0.0.3"),
        "--no-agent",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--tls-cert", "a"), "give --tls-cert and --tls-key together"),
        (("--insecure-http", "--tls-cert", "a", "--tls-key", "b"), "either --insecure-http or"),
        (("--listen", "lab:8470"), "must be an IP address and a port"),
        (("--proxy", "lab"), "--proxy"),
        (("--prefix", "/ui"), "is not a possible prefix"),
        (("--backup-to", "ftp://x", "--listen", "127.0.0.1:0"), "--backup-to: 'ftp://x'"),
        (("--backup-every", "1s"), "must be a time such as 30m"),
    ],
)
def test_invalid_settings_stop_the_server(
    tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    listen = () if "--listen" in words else ("--listen", "0.0.0.0:0")
    command = [sys.executable, "-m", "local_cluster", "--home", str(tmp_path), "--no-agent"]
    done = subprocess.run(
        [*command, *listen, *words],
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (1, 2)
    assert message in done.stderr


def test_status_without_a_server(detcloud: Detcloud, tmp_path: Path) -> None:
    done = detcloud("server", "status", "--data", "data")
    assert (done.code, done.out) == (4, f"no server runs in {tmp_path / 'data'}\n")
    answer = json.loads(detcloud("server", "status", "--data", "data", "--json").out)
    assert answer == {"running": False, "data": str(tmp_path / "data")}


def test_code_needs_a_running_server(detcloud: Detcloud) -> None:
    assert "no server runs in" in detcloud("server", "code", "--data", "data").err


def test_unit_starts_the_server_with_its_options(detcloud: Detcloud) -> None:
    unit = render_unit_text(detcloud, "--url", "https://lab:8470", "--user", "lab", "--no-agent")
    assert "User=lab\n" in unit
    assert "StateDirectory=detcloud\n" in unit
    command = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)[0]
    assert command.endswith(
        "server run --data /var/lib/detcloud --listen 0.0.0.0:8470 "
        "--url https://lab:8470 --no-agent"
    )


def test_trials_of_the_server_get_more_of_the_machine(detcloud: Detcloud) -> None:
    alone, both = render_unit_text(detcloud, "--no-agent"), render_unit_text(detcloud)
    assert "ProtectSystem=strict\n" in alone
    assert "PrivateDevices=yes\n" in alone
    assert "ProtectSystem=full\n" in both
    # GPUs are devices.
    assert "PrivateDevices" not in both
    # Trials survive a crash of the server.
    assert "KillMode=process\n" in both
    assert "NoNewPrivileges=yes\n" in both


def test_passwords_are_not_in_the_unit(detcloud: Detcloud) -> None:
    done = detcloud("server", "install", "--print", "--state", "postgresql://u:secret@db/lab")
    assert "secret" not in done.out
    assert "DETCLOUD_STATE=..." in done.out


def test_folders_of_the_server_are_writable(detcloud: Detcloud, tmp_path: Path) -> None:
    unit = render_unit_text(
        detcloud, "--data", "/srv/lab", "--backup-to", "/mnt/back up", "--no-agent"
    )
    assert 'ReadWritePaths=/srv/lab\nReadWritePaths="/mnt/back up"\n' in unit
    assert "StateDirectory" not in unit
    assert "ReadWritePaths" not in render_unit_text(detcloud, "--backup-to", "s3://bucket/lab")
    shared = render_unit_text(detcloud, "--files", "/mnt/shared", "--clouds", "none", "--no-agent")
    assert "/mnt/shared" in next(row for row in shared.splitlines() if "ReadWritePaths" in row)
    assert "--files /mnt/shared --clouds none" in shared


def test_unit_names_the_bucket_and_the_file_with_credentials(detcloud: Detcloud) -> None:
    address = "s3://lab/team?endpoint_url=https://minio.lab:9000"
    words = ["--files", address, "--files-credentials", "/etc/detcloud/keys", "--no-agent"]
    unit = render_unit_text(detcloud, *words)
    assert address in unit
    assert "--files-credentials /etc/detcloud/keys" in unit
    assert "s3:" not in "".join(row for row in unit.splitlines() if "ReadWritePaths" in row)


def test_invalid_address_of_a_bucket_is_refused(detcloud: Detcloud) -> None:
    done = detcloud("server", "install", "--print", "--files", "s3://lab?endpoint=minio")
    assert done.code == 2
    assert "expected endpoint_url or region" in done.err


@pytest.mark.parametrize(
    ("word", "quoted"),
    [("/a/b-c", "/a/b-c"), ("a b", '"a b"'), ("50%$x", '"50%%$$x"'), ('a"\\', '"a\\"\\\\"')],
)
def test_words_are_quoted_for_systemd(word: str, quoted: str) -> None:
    assert quote(word) == quoted


def test_control_characters_are_refused() -> None:
    with pytest.raises(ValueError, match="control character"):
        quote("a\nExecStartPre=/bin/sh")


@pytest.mark.parametrize("words", [(), ("--no-agent", "--backup-to", "/mnt/back up")])
def test_systemd_accepts_the_unit(
    detcloud: Detcloud, tmp_path: Path, words: tuple[str, ...]
) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        miss("systemd-analyze", "a program of the system")
    path = tmp_path / "detcloud.service"
    path.write_text(render_unit_text(detcloud, *words))
    command = [program, "verify", "--man=no", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, [x for x in done.stderr.splitlines() if "detcloud" in x]) == (0, [])


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Redirect the files of the service into a folder, and return the commands of the system."""
    commands: list[tuple[str, ...]] = []
    monkeypatch.setattr(server_install, "UNIT", tmp_path / "etc/detcloud.service")
    monkeypatch.setattr(server_install, "ENVIRONMENT", tmp_path / "etc/server.env")
    monkeypatch.setattr(server_install, "_run", lambda *words: commands.append(words))
    monkeypatch.setattr(server_install, "_require_root", lambda: None)
    monkeypatch.setattr(shutil, "chown", lambda *_: None)
    return commands


def test_install_writes_and_uninstall_deletes(
    detcloud: Detcloud, tmp_path: Path, machine: list[tuple[str, ...]]
) -> None:
    unit, environment = tmp_path / "etc/detcloud.service", tmp_path / "etc/server.env"
    words = ["--data", "data", "--user", "nobody-here", "--state", "postgresql://u:secret@db/lab"]
    done = detcloud("server", "install", *words)
    assert done.code == 0
    assert f"{unit} was written\n" in done.out
    assert machine[0][0] == "useradd"
    assert machine[-1] == ("systemctl", "daemon-reload")
    assert environment.read_text() == 'DETCLOUD_STATE="postgresql://u:secret@db/lab"\n'
    assert environment.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "data").is_dir()
    assert detcloud("server", "uninstall").code == 1
    assert unit.exists()
    assert detcloud("server", "uninstall", "--yes").code == 0
    assert ("systemctl", "disable", "--now", unit.name) in machine
    assert not unit.exists()
    assert not environment.exists()
    assert (tmp_path / "data").is_dir()
    assert detcloud("server", "uninstall").out == "no service is installed\n"
