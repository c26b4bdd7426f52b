"""A machine with Linux and OpenSSH only: namespaces of network, mounts, names and processes.

    FOLDER/etc   /etc of the machine, a copy of this machine's
    FOLDER/opt   /opt
    FOLDER/lib   /var/lib

/root, /home, /run, /tmp, /work and /usr/local begin empty. `systemctl` and `sudo` are the scripts
of `bare_machine_files`, because the machine's first process is no systemd.
"""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.emulators.machine_network import MachineNetwork
from tests.emulators.server import missing
from tests.patience import PROCESS_SECONDS_MAX, wait_until

_FILES = Path(__file__).with_name("bare_machine_files")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TWO_CORES = ("taskset", "-c", ",".join(map(str, sorted(os.sched_getaffinity(0))[:2])))
_ENTER = """
set -e
hostname "$2"
mount --bind "$1/etc" /etc
mount --bind "$1/opt" /opt
mount --bind "$1/lib" /var/lib
mount --bind "$3" /mnt
mkdir -p "$1/srv/detcloud"
mount --bind "$1/srv" /srv
mount --bind "$4" /srv/detcloud
cp -r "$5" "$1/bin"
for place in /usr/local /root /home /run /work; do mount -t tmpfs tmpfs "$place"; done
mkdir -p /run/sshd /usr/local/sbin /root/.ssh
mount --bind "$1/bin" /usr/local/sbin
cp "$1/key" /root/.ssh/id_ed25519
cp "$1/key.pub" /root/.ssh/authorized_keys
chmod -R go= /root
/usr/sbin/sshd -e -D &
while [ ! -e /run/sshd.pid ]; do sleep 0.05; done
mount -t tmpfs -o mode=1777 tmpfs /tmp
cd /
exec /usr/bin/python3 -c 'import os
while True: os.wait()'
"""
_SSHD = """\
HostKey /etc/ssh/host_key
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
PidFile /run/sshd.pid
"""


def make_key(path: Path) -> None:
    """Write a new private key to `path`, and the public key beside it."""
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
    subprocess.run(command, check=True)


class BareMachine:
    """A machine of a network. Close the machine to end all its processes.

    Args:
        network: the network, which has the machine's address.
        name: the host name.
        folder: a folder for the machine's files.
        key: the private key of all machines' administrator, with the public key beside.
        wheels: a folder of wheels, from which pip installs.
        shared: the folder that all machines have at /srv/detcloud.
    """

    def __init__(
        self,
        network: MachineNetwork,
        name: str,
        folder: Path,
        key: Path,
        wheels: Path,
        shared: Path,
    ) -> None:
        if not network.is_namespaced or not Path("/usr/sbin/sshd").exists():
            missing("openssh-server", "machines need root, `ip` and the package openssh-server")
        self.name, self.folder = name, folder
        folder.mkdir(parents=True)
        subprocess.run(["cp", "-a", "/etc", str(folder / "etc")], check=True)
        for place in ("opt", "lib"):
            (folder / place).mkdir()
        shutil.rmtree(folder / "etc/xdg/pip", ignore_errors=True)
        (folder / "etc/pip.conf").write_text("[global]\nno-index = true\nfind-links = /mnt\n")
        for source, target in ((key, "key"), (key.with_suffix(".pub"), "key.pub")):
            shutil.copy(source, folder / target)
        settings = folder / "etc/ssh"
        make_key(settings / "host_key")
        (settings / "sshd_config").write_text(_SSHD)
        words = [str(folder), name, str(wheels), str(shared), str(_FILES)]
        unshared = [
            "unshare",
            "--mount",
            "--uts",
            "--pid",
            "--fork",
            "--mount-proc",
            "--kill-child",
        ]
        self._log = (folder / "machine.log").open("wb")
        self._process = subprocess.Popen(
            network.command_on(name, [*unshared, *_TWO_CORES, "sh", "-c", _ENTER, "sh", *words]),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env={"PATH": _PATH},
            start_new_session=True,
        )
        wait_until(self._is_up, what=f"sshd of {name}")

    def learn_hosts(self, addresses: Mapping[str, str]) -> None:
        """Write the addresses of names into the machine's /etc/hosts."""
        lines = [f"{address} {name}\n" for name, address in addresses.items()]
        (self.folder / "etc/hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))

    def run(self, command: str, code: int = 0) -> str:
        """Run a shell command as root, and return stdout and stderr. Check the exit code."""
        done = subprocess.run(
            self._inner_command(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PROCESS_SECONDS_MAX,
            env={},
        )
        assert done.returncode == code, f"{self.name}: {command}\n{done.stdout}"
        return done.stdout

    def start_on_terminal(self, command: str) -> Terminal:
        """Start a shell command as root on a new terminal."""
        return Terminal(self._inner_command(f"exec setsid -c {command}"))

    def listing(self) -> set[str]:
        """Return the files of /etc, /opt and /var/lib, without backups of the users' files."""
        places = [self.folder / name for name in ("etc", "opt", "lib")]
        found = {str(path.relative_to(self.folder)) for top in places for path in top.rglob("*")}
        return {name for name in found if not name.endswith(("-", ".lock"))}

    def close(self) -> None:
        """Kill all processes of the machine."""
        self._process.kill()
        self._process.wait()
        self._log.close()

    def _init(self) -> int | None:
        """Return the process 1 of the machine, or None before its start."""
        pid = self._process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return int(children[0]) if children else None

    def _is_up(self) -> bool:
        assert self._process.poll() is None, (self.folder / "machine.log").read_text()
        pid = self._init()
        return pid is not None and b"os.wait" in Path(f"/proc/{pid}/cmdline").read_bytes()

    def _inner_command(self, command: str) -> list[str]:
        spaces = ["--mount", "--uts", "--net", "--pid", "--wd=/"]
        words = [
            "env",
            "-i",
            "HOME=/root",
            "USER=root",
            "LANG=C.UTF-8",
            "TERM=xterm",
            f"PATH={_PATH}",
        ]
        shell = ["/bin/sh", "-c", f"cd /root && {command}"]
        return ["/usr/bin/nsenter", "-t", str(self._init()), *spaces, *_TWO_CORES, *words, *shell]


class Terminal:
    """A command on a terminal, with the output so far."""

    def __init__(self, command: list[str]) -> None:
        """Start a command."""
        self._main, other = pty.openpty()
        os.set_blocking(self._main, False)
        self._process = subprocess.Popen(
            command, stdin=other, stdout=other, stderr=other, env={}, start_new_session=True
        )
        os.close(other)
        self._text = ""

    def output(self) -> str:
        """Return the output since the start."""
        try:
            while part := os.read(self._main, 65536):
                self._text += part.decode().replace("\r\n", "\n")
        except OSError:
            pass
        return self._text

    def type(self, text: str) -> None:
        """Type a text."""
        os.write(self._main, text.encode())

    def is_running(self) -> bool:
        """Return whether the command still runs."""
        return self._process.poll() is None

    def interrupt(self) -> int:
        """Press Ctrl-C, and return the exit code."""
        self.type("\x03")
        return self._process.wait(PROCESS_SECONDS_MAX)

    def close(self) -> None:
        """Kill the command if it runs, and close the terminal."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._main)
