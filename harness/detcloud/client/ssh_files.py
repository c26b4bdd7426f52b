"""The files of this machine's SSH client for trials: the user's key, host keys, and settings.

The files are in the folder `ssh` of detcloud's data folder. A host name is `detcloud-ID` for the
running trial of an experiment, command, notebook or shell, and `detcloud-trial-ID` for a trial.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from detcloud.client.home import HOME_VARIABLE, Home
from detcloud.shared.errors import DetcloudError
from detcloud.shared.ssh_greeting import public_key_of

PREFIX = "detcloud"
"""The default beginning of host names."""
USER = "detcloud"
"""The name with which the client logs in. The server accepts any name with the right key."""
CONFIG_FILE = "config"
_PREFIX = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")
_HOST = re.compile(r"(?P<prefix>.*?)-(?P<trial>trial-)?(?P<id>[0-9]{1,12})")
_KEY_FILE = "key"
_KNOWN_HOSTS_FILE = "known_hosts"
_PROGRAM_SECONDS_MAX = 60


@dataclass(frozen=True)
class SshHost:
    """A trial as a host of the SSH client."""

    id: int
    is_trial: bool
    """Whether `id` is a trial, not an experiment, command, notebook or shell."""
    prefix: str = PREFIX

    @property
    def name(self) -> str:
        """The name of the host, for example `detcloud-12`."""
        return f"{self.prefix}-{'trial-' if self.is_trial else ''}{self.id}"

    @classmethod
    def parse(cls, name: str) -> SshHost:
        """Return the host of a name.

        Raises:
            DetcloudError: the name has another form.
        """
        found = _HOST.fullmatch(name)
        if found is None or not _PREFIX.fullmatch(found["prefix"]):
            raise DetcloudError(
                f"{name!r} is no host of a trial; expected {PREFIX}-ID or {PREFIX}-trial-ID"
            )
        return cls(int(found["id"]), found["trial"] is not None, found["prefix"])


def check_prefix(prefix: str) -> None:
    """Raise DetcloudError unless the text can begin host names."""
    if not _PREFIX.fullmatch(prefix):
        raise DetcloudError(
            f"{prefix!r} cannot begin host names; expected up to 32 letters, digits, `-`, `_` and "
            "`.`, with a letter or digit first"
        )


@dataclass(frozen=True)
class SshFiles:
    """The files of the SSH client. The folder may be missing."""

    folder: Path

    @classmethod
    def from_environment(cls) -> SshFiles:
        """Return the files in the data folder of this user."""
        return cls(Home.from_environment().folder / "ssh")

    @property
    def config(self) -> Path:
        """The file with the settings for hosts of trials, which the user's own file includes."""
        return self.folder / CONFIG_FILE

    def load_or_create_key(self) -> str:
        """Return the user's public key. Create a key first if the file is missing.

        Only this user can read the private key, which has no passphrase.

        Raises:
            DetcloudError: OpenSSH's client is not installed, or the folder cannot be used.
        """
        path = self.folder / _KEY_FILE
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._lock():
                if not path.exists():
                    self._create_key(path)
            return public_key_of(path.with_suffix(".pub").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DetcloudError(
                f"the SSH key {path} cannot be used: {error}; delete it and its `.pub`, so that a "
                "new key is made"
            ) from None

    def store_host_key(self, host: str, key: str) -> None:
        """Note the only valid key of a host, in place of the host's former key.

        Raises:
            DetcloudError: the file cannot be written.
        """
        path, line = self.folder / _KNOWN_HOSTS_FILE, f"{host} {key}\n"
        try:
            with self._lock():
                lines = path.read_text("utf-8").splitlines(True) if path.exists() else []
                if line in lines:
                    return
                others = [other for other in lines if other.split(" ", 1)[0] != host]
                replace_file(path, "".join([*others, line]))
        except (OSError, ValueError) as error:
            raise DetcloudError(f"{path} cannot be written: {error}") from None

    def settings(self, url: str | None = None) -> dict[str, str]:
        """Return the settings of OpenSSH's client for hosts of trials.

        Args:
            url: the address of the cluster for `--url`. None for the configured cluster.
        """
        return {
            "ProxyCommand": _proxy_command(url),
            "User": USER,
            "IdentityFile": f'"{self.folder / _KEY_FILE}"',
            "IdentitiesOnly": "yes",
            "PreferredAuthentications": "publickey",
            "UserKnownHostsFile": f'"{self.folder / _KNOWN_HOSTS_FILE}"',
            "GlobalKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "yes",
            "UpdateHostKeys": "no",
            # The tunnel notices broken connections, and resumes them.
            "ServerAliveInterval": "0",
        }

    def write_config(self, prefix: str, url: str | None = None) -> str:
        """Write the settings for hosts `PREFIX-*` in place of former settings. Return the block.

        Blocks of other prefixes stay.

        Raises:
            DetcloudError: the file cannot be written.
        """
        block = render_block(f"{prefix}-*", self.settings(url))
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._lock():
                text = self.config.read_text("utf-8") if self.config.exists() else ""
                blocks = [b for b in text.split("\n\n") if b.strip()]
                others = [b for b in blocks if not b.startswith(f"Host {prefix}-*\n")]
                replace_file(self.config, "\n\n".join([*others, block.rstrip("\n")]) + "\n")
        except (OSError, ValueError) as error:
            raise DetcloudError(f"{self.config} cannot be written: {error}") from None
        return block

    def _create_key(self, path: Path) -> None:
        command = [find_program("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", USER]
        run = subprocess.run(
            [*command, "-f", str(path)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROGRAM_SECONDS_MAX,
            check=False,
        )
        if run.returncode != 0:
            raise OSError(run.stderr.strip() or f"ssh-keygen exited with {run.returncode}")

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        """Wait for the lock of the folder, because many SSH clients may start at once."""
        with (self.folder / "lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def find_program(name: str) -> str:
    """Return the path of a program of OpenSSH's client.

    Raises:
        DetcloudError: the program is not installed.
    """
    path = shutil.which(name)
    if path is None:
        raise DetcloudError(
            f"`{name}` is not installed on this machine: install OpenSSH's client, for example "
            "with `apt-get install openssh-client`"
        )
    return path


def render_block(pattern: str, settings: Mapping[str, str]) -> str:
    """Return settings as a block of ssh_config for hosts that match the pattern."""
    lines = "".join(f"    {name} {value}\n" for name, value in settings.items())
    return f"Host {pattern}\n{lines}"


def replace_file(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace a file by a rename. Raises OSError; the old file stays then."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, mode)
            file.write(text)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def include_config(config: Path, own: Path) -> Path | None:
    """Add a line that includes `config` to the beginning of the user's file `own`.

    Do nothing if the file has the line. Return the path of a copy of the former file, or None if
    nothing was changed or the file is new. Settings at the beginning of the file have precedence,
    and a line after a `Host` would belong to this host only.

    Raises:
        DetcloudError: a file cannot be read or written.
    """
    line = f'Include "{config}"'
    try:
        target = own.resolve()
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not target.exists():
            replace_file(target, f"{line}\n")
            return None
        text = target.read_text(encoding="utf-8")
        if any(present.strip() == line for present in text.splitlines()):
            return None
        mode = target.stat().st_mode & 0o777
        copy = _free_path(target)
        replace_file(copy, text, mode)
        replace_file(target, f"{line}\n\n{text}", mode)
    except (OSError, ValueError) as error:
        raise DetcloudError(f"{own} cannot be changed: {error}") from None
    return copy


def _free_path(path: Path) -> Path:
    """Return a path for a copy of a file, at which no file exists."""
    number = 0
    while (copy := path.with_name(f"{path.name}.before-detcloud{number or ''}")).exists():
        number += 1
    return copy


def _proxy_command(url: str | None) -> str:
    """Return the command by which OpenSSH's client reaches a trial. `%n` is the host's name."""
    words = [sys.executable, "-P", "-m", "detcloud.cli.main", "ssh", "proxy"]
    chosen = os.environ.get(HOME_VARIABLE)
    if chosen:
        # Editors start the command without the variables of a terminal.
        words = ["env", f"{HOME_VARIABLE}={Home.from_environment().folder}", *words]
    if url is not None:
        words += ["--url", url]
    return f"{shlex.join(words).replace('%', '%%')} %n"
