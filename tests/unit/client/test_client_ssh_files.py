"""The files of this machine's SSH client: key, host keys, settings, and the user's own file."""

from __future__ import annotations

import shutil
import stat
import subprocess
import threading
from pathlib import Path

import pytest

from detcloud.client.ssh_files import SshFiles, SshHost, check_prefix, include_config
from detcloud.shared.errors import DetcloudError

KEY, OTHER = (f"ssh-ed25519 {letter * 68}" for letter in "AB")

needs_ssh = pytest.mark.skipif(
    shutil.which("ssh-keygen") is None, reason="OpenSSH's client is not installed"
)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SshFiles:
    monkeypatch.setenv("DETCLOUD_HOME", str(tmp_path / "detcloud home"))
    found = SshFiles.from_environment()
    found.folder.mkdir(parents=True)
    return found


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("detcloud-12", SshHost(12, is_trial=False)),
        ("detcloud-trial-7", SshHost(7, is_trial=True)),
        ("team-a-3", SshHost(3, is_trial=False, prefix="team-a")),
    ],
)
def test_host_has_a_name_for_the_trial(name: str, host: SshHost) -> None:
    assert SshHost.parse(name) == host
    assert host.name == name


@pytest.mark.parametrize("name", ["", "12", "-12", "detcloud-", "detcloud-x", "a b-1", "d-1 -oX"])
def test_other_names_are_no_hosts(name: str) -> None:
    with pytest.raises(DetcloudError, match="expected detcloud-ID"):
        SshHost.parse(name)


def test_prefix_cannot_hold_a_pattern() -> None:
    check_prefix("team-a")
    for prefix in ("", "*", "a b", "-a", "a\nb", "a" * 33):
        with pytest.raises(DetcloudError, match="cannot begin host names"):
            check_prefix(prefix)


@needs_ssh
def test_key_is_created_once_for_this_user_only(files: SshFiles) -> None:
    created = files.load_or_create_key()
    assert created == files.load_or_create_key()
    assert stat.S_IMODE((files.folder / "key").stat().st_mode) == 0o600


@needs_ssh
def test_clients_that_start_at_once_agree_on_a_key(files: SshFiles) -> None:
    keys: list[str] = []
    threads = [
        threading.Thread(target=lambda: keys.append(files.load_or_create_key())) for _ in range(5)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys) == 5
    assert len(set(keys)) == 1


def test_missing_client_of_openssh_is_named(
    files: SshFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(DetcloudError, match=r"`ssh-keygen` is not installed.*openssh-client"):
        files.load_or_create_key()


def test_damaged_key_is_named_with_a_remedy(files: SshFiles) -> None:
    (files.folder / "key").write_text("private")
    (files.folder / "key.pub").write_text("ssh-rsa AAAA")
    with pytest.raises(DetcloudError, match="delete it"):
        files.load_or_create_key()


def test_new_host_key_replaces_the_key_of_this_host_only(files: SshFiles) -> None:
    for host in ("detcloud-1", "detcloud-12"):
        files.store_host_key(host, KEY)
    files.store_host_key("detcloud-1", OTHER)
    files.store_host_key("detcloud-1", OTHER)
    text = (files.folder / "known_hosts").read_text()
    assert sorted(text.splitlines()) == [f"detcloud-1 {OTHER}", f"detcloud-12 {KEY}"]


def test_blocks_of_other_prefixes_stay(files: SshFiles) -> None:
    files.write_config("detcloud")
    files.write_config("team", "https://team.example")
    block = files.write_config("detcloud")
    text = files.config.read_text()
    assert text.count("Host detcloud-*\n") == text.count("Host team-*\n") == 1
    assert block.rstrip() in text
    assert "--url https://team.example %n" in text


@needs_ssh
def test_openssh_reads_the_settings(files: SshFiles) -> None:
    files.write_config("detcloud")
    command = ["ssh", "-F", str(files.config), "-G", "detcloud-12"]
    read = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"identityfile {files.folder / 'key'}\n" in read
    assert "stricthostkeychecking true\n" in read
    # Each of these folders has a space in its name.
    assert f"'DETCLOUD_HOME={files.folder.parent}'" in read
    assert read.count("detcloud.cli.main ssh proxy %n") == 1


def test_own_file_gets_one_line_and_a_copy(tmp_path: Path) -> None:
    own, config = tmp_path / ".ssh" / "config", tmp_path / "detcloud"
    own.parent.mkdir()
    own.write_text("Host a\n    Port 1\n")
    own.chmod(0o640)
    copy = include_config(config, own)
    assert copy is not None
    assert copy.read_text() == "Host a\n    Port 1\n"
    assert own.read_text() == f'Include "{config}"\n\nHost a\n    Port 1\n'
    assert stat.S_IMODE(own.stat().st_mode) == 0o640
    assert include_config(config, own) is None
    assert own.read_text().count("Include") == 1
    own.write_text("Host b\n")
    assert include_config(config, own) not in (None, copy)


def test_missing_own_file_is_created(tmp_path: Path) -> None:
    own = tmp_path / ".ssh" / "config"
    assert include_config(tmp_path / "detcloud", own) is None
    assert own.read_text() == f'Include "{tmp_path / "detcloud"}"\n'
    assert stat.S_IMODE(own.stat().st_mode) == 0o600
    assert stat.S_IMODE(own.parent.stat().st_mode) == 0o700


def test_own_file_that_is_a_link_stays_a_link(tmp_path: Path) -> None:
    target = tmp_path / "dotfiles"
    target.write_text("Host a\n")
    own = tmp_path / "config"
    own.symlink_to(target)
    include_config(tmp_path / "detcloud", own)
    assert own.is_symlink()
    assert target.read_text().startswith("Include")
