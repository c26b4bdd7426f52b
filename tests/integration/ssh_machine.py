"""A machine with a real sshd: processes in a mount namespace with folders of their own.

    FOLDER/etc   /etc of the machine, a copy of this machine's
    FOLDER/opt   /opt
    FOLDER/lib   /var/lib

So the installation of an agent creates its user, its service and its files inside the folder.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from tests.emulators.server import missing
from tests.patience import ANSWER_SECONDS_MAX

_ENTER = """
set -e
mount --make-rprivate /
mount --bind "$1/etc" /etc
mount --bind "$1/opt" /opt
mount --bind "$1/lib" /var/lib
mkdir -p /run/sshd
exec /usr/sbin/sshd -D -e -f "$1/sshd_config"
"""


class SshMachine:
    """A machine that accepts the connections of a key. Close it to end all its processes."""

    def __init__(self, folder: Path) -> None:
        """Start the machine with files in `folder`. Skip the test without root or sshd."""
        if os.getuid() != 0 or not Path("/usr/sbin/sshd").exists() or not shutil.which("unshare"):
            missing("openssh-server", "sshd needs root and the package openssh-server")
        self.folder = folder
        self.etc, self.opt, self.lib = (folder / name for name in ("etc", "opt", "lib"))
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", "/etc", str(self.etc)], check=True)
        for place in (self.opt, self.lib):
            place.mkdir()
        self.key = folder / "key"
        for path in (self.key, folder / "host_key"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
            subprocess.run(command, check=True)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = int(listener.getsockname()[1])
        (folder / "sshd_config").write_text(self._configuration())
        self._log = (folder / "sshd.log").open("wb")
        self._process = subprocess.Popen(
            ["unshare", "--mount", "sh", "-c", _ENTER, "sh", str(folder)],
            stdout=self._log,
            stderr=self._log,
            env={"PATH": "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"},
            start_new_session=True,
        )
        self._wait_for_port()

    @property
    def url(self) -> str:
        """The destination for `detcloud agent add`."""
        return f"ssh://root@127.0.0.1:{self.port}"

    @property
    def options(self) -> list[str]:
        """The options of the command line that let OpenSSH use the machine's key."""
        settings = {
            "IdentityFile": self.key,
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": self.folder / "known_hosts",
            "StrictHostKeyChecking": "accept-new",
        }
        return [f"--ssh-option={name}={value}" for name, value in settings.items()]

    def listing(self) -> dict[str, str]:
        """Return the files of the machine, with mode and content, without logs and backups."""
        found = {}
        for root in (self.etc, self.opt, self.lib):
            for path in sorted(root.rglob("*")):
                name = str(path.relative_to(self.folder))
                # useradd and userdel keep the former file with a hyphen, and a lock.
                if name.endswith(("-", ".lock")):
                    continue
                state = path.lstat()
                is_plain = path.is_file() and not path.is_symlink()
                content = path.read_bytes().hex() if is_plain else ""
                found[name] = f"{state.st_mode:o} {state.st_uid} {state.st_gid} {content}"
        return found

    def run(self, command: str) -> str:
        """Run a command of the shell in the machine's namespace, and return the output."""
        words = ["nsenter", f"--mount=/proc/{self._process.pid}/ns/mnt", "sh", "-c", command]
        return subprocess.run(words, check=True, capture_output=True, text=True).stdout

    def processes(self) -> list[int]:
        """Return the processes in the machine's mount namespace, sshd included."""
        own = (Path("/proc") / str(self._process.pid) / "ns/mnt").readlink()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if (entry / "ns/mnt").readlink() == own:
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def close(self) -> None:
        """Kill all processes of the machine."""
        for pid in [*self.processes(), self._process.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()
        self._log.close()

    def _configuration(self) -> str:
        lines = [
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            f"HostKey {self.folder}/host_key",
            f"AuthorizedKeysFile {self.folder}/key.pub",
            "StrictModes no",
            "UsePAM no",
            "PasswordAuthentication no",
            "PermitRootLogin prohibit-password",
            "PidFile none",
        ]
        return "\n".join([*lines, ""])

    def _wait_for_port(self) -> None:
        until = time.monotonic() + ANSWER_SECONDS_MAX
        while time.monotonic() < until:
            assert self._process.poll() is None, (self.folder / "sshd.log").read_text()
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise AssertionError("sshd did not start")
