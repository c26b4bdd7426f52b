"""A machine whose programs are stubs: the real boot script runs in a folder as its disk.

The shell, curl, tar, sed, Python and gpg are the real programs of this machine. The programs that
would change this machine (systemctl, apt-get, mount ...) are stubs, and so are the programs of
NVIDIA and Docker.
"""

import atexit
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.patience import PROCESS_SECONDS_MAX

STUBS: Mapping[str, str] = {
    # `id` finds the user after useradd.
    "id": '[ -e "$DETCLOUD_ROOT/user" ]',
    "useradd": 'touch "$DETCLOUD_ROOT/user"',
    "runuser": 'shift 3; exec "$@"',
    # The agent reaches the cluster at the start of the agent. Times of files have steps of 4 ms.
    "systemctl": (
        'case "$*" in *-agent*) sleep 0.02; touch "$DETCLOUD_ROOT/run/detcloud/alive";; esac'
    ),
    **dict.fromkeys(
        ("apt-get", "chown", "docker", "iptables", "journalctl", "mount", "usermod"), ""
    ),
    "update-ca-certificates": (
        'mkdir -p "$DETCLOUD_ROOT/etc/ssl/certs"\n'
        'cat "$DETCLOUD_ROOT"/usr/local/share/ca-certificates/*.crt'
        ' > "$DETCLOUD_ROOT/etc/ssl/certs/ca-certificates.crt"'
    ),
    # The disk of this machine may be full.
    "df": "echo Avail; echo 200",
    # The machine has no local disks.
    **dict.fromkeys(("lsblk", "mountpoint"), "exit 1"),
}
# The beginnings of names of programs that only stubs may replace.
FOREIGN = (
    *("apt", "container", "docker", "iptables", "nvidia", "python3", "snap", "systemctl"),
    "update-ca",
)
# Stands in for fail_boot of failures.sh where a test runs a part of the script alone.
FAIL_BOOT = 'fail_boot() { echo "$1"; exit 1; }\n'
GPU_CLASS, NVIDIA = "0x030200", "0x10de"
DRIVER = "580.95.05"


@dataclass
class StubMachine:
    """A machine before its first boot.

    `programs`: shell code of stubs by name, which replaces the code of STUBS. `removed`: the names
    of programs that the machine lacks.
    """

    root: Path
    programs: dict[str, str] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)

    def remove(self, name: str) -> None:
        """Remove a program from the machine."""
        self.removed.add(name)

    def add_gpus(self, count: int, working: int | None = None, driver: str = DRIVER) -> None:
        """Put GPUs on the PCI bus, and install a driver that sees the `working` GPUs, by default
        all, and the container toolkit.
        """
        for number in range(count):
            device = self.root / f"sys/bus/pci/devices/0000:00:{number:02x}.0"
            device.mkdir(parents=True)
            (device / "vendor").write_text(f"{NVIDIA}\n")
            (device / "class").write_text(f"{GPU_CLASS}\n")
        seen = count if working is None else working
        lines = "\\n".join(f"{driver}, GPU-{number:08x}" for number in range(seen))
        self.programs.setdefault("nvidia-smi", f"printf '{lines}\\n'")
        self.programs.setdefault("nvidia-ctk", "")

    def boot(self, script: str, environment: Mapping[str, str]) -> int:
        """Run the boot script, and return its exit status."""
        programs, system = self.root / "bin", _system_programs()
        programs.mkdir(exist_ok=True)
        stubs = {**STUBS, **self.programs}
        for name in stubs.keys() - self.removed:
            path, command = programs / name, stubs[name]
            path.write_text(f'#!/bin/bash\necho "{name} $*" >> "$DETCLOUD_ROOT/said"\n{command}\n')
            path.chmod(0o755)
        (self.root / "said").unlink(missing_ok=True)
        done = subprocess.run(
            ["bash"],
            input=script.encode(),
            env={
                "PATH": f"{programs}:{system}",
                "DETCLOUD_ROOT": str(self.root),
                **environment,
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PROCESS_SECONDS_MAX,
            check=False,
        )
        return done.returncode

    @property
    def commands(self) -> list[str]:
        """The calls of stubs in the last boot, in order."""
        log = self.root / "said"
        return log.read_text().splitlines() if log.exists() else []

    @property
    def log(self) -> str:
        """The output of the boot script."""
        return (self.root / "var/log/detcloud-boot.log").read_text()


@cache
def _system_programs() -> Path:
    """Return a folder with links to the programs of this machine, and this Python as python3.

    The folder lacks programs that would change the machine. It exists until the process ends.
    """
    made = TemporaryDirectory(prefix="detcloud-programs-")
    atexit.register(made.cleanup)
    folder = Path(made.name)
    for place in (Path("/bin"), Path("/usr/bin"), Path("/sbin"), Path("/usr/sbin")):
        for path in place.iterdir() if place.exists() else ():
            link = folder / path.name
            if not (link.is_symlink() or path.name.startswith(FOREIGN)):
                link.symlink_to(path)
    (folder / "python3").symlink_to(Path(sys.executable).resolve())
    return folder
