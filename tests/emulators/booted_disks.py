"""Disks of machines that boot here as real processes.

Each disk is a folder. Stubs replace the few commands that would change this machine. The agent runs
as its unit file defines.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.patience import PATIENCE

BOOT_SECONDS_MAX = 60.0 * PATIENCE
# Commands that must not run on this machine. `systemctl` starts the agent's unit for real.
QUIET = ("apt-get", "chown", "docker", "useradd", "usermod")
METADATA = "http://169.254.169.254"

_QUIET = """#!/bin/sh
echo "$(basename "$0") $*" >> "$DETCLOUD_ROOT/commands.log"
[ "$(basename "$0")" != "$FAILING_COMMAND" ] || { echo "$FAILING_COMMAND: it is broken"; exit 6; }
"""
# The boot script expects the driver of the instance type's GPU. The agent finds no GPU, since this
# machine may have none.
_NVIDIA_SMI = """#!/bin/sh
case "$*" in *=driver_version,uuid*) echo "580.95.05, GPU-0" ;; *) exit 9 ;; esac
"""
_ID = "#!/bin/sh\nexit 1\n"
# The metadata address is not reachable here, and curl may not be installed.
_CURL = """#!{python}
import argparse, os, sys, time, urllib.error, urllib.request
parser = argparse.ArgumentParser()
flags = ("-f", "-s", "-S", "-L", "--retry-all-errors", "--retry-connrefused", "--insecure")
for flag in flags:
    parser.add_argument(flag, action="store_true")
for name in ("--retry", "--retry-delay", "--max-time"):
    parser.add_argument(name, type=int, default=0)
parser.add_argument("-X", default="GET")
parser.add_argument("--noproxy", choices=["*"])
parser.add_argument("-H", action="append", default=[])
parser.add_argument("-o", "--output", dest="o")
parser.add_argument("--dump-header", choices=["-"])
parser.add_argument("-d", choices=["@-"])
parser.add_argument("url")
asked = parser.parse_args()
url = asked.url.replace("{metadata}", os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", ""))
lines = [sys.stdin.readline().strip() if line == "@-" else line for line in asked.H]
headers = dict(line.split(": ", 1) for line in lines)
body = sys.stdin.buffer.read().strip() if asked.d else None
request = urllib.request.Request(url, body, headers, method="POST" if asked.d else asked.X)
for left in range(asked.retry, -1, -1):
    try:
        answer = urllib.request.urlopen(request, timeout=asked.max_time or 30)
        break
    except OSError as error:
        if isinstance(error, urllib.error.HTTPError) and not asked.f:
            answer = error
            break
        if not left:
            sys.exit(f"curl: {{error}}")
        time.sleep(asked.retry_delay or 1)
if asked.dump_header:
    print(f"HTTP/1.1 {{answer.status}}", answer.headers, sep="\\r\\n", flush=True)
(open(asked.o, "wb") if asked.o else sys.stdout.buffer).write(answer.read())
"""
# No container engine exists here: trials are processes.
_SYSTEMCTL = """#!{python}
import os, shlex, subprocess, sys
root = os.environ["DETCLOUD_ROOT"]
with open(f"{{root}}/commands.log", "a") as log:
    log.write("systemctl " + " ".join(sys.argv[1:]) + "\\n")
if sys.argv[1:] == ["enable", "--now", "detcloud-agent.service"]:
    lines = open(f"{{root}}/etc/systemd/system/detcloud-agent.service").read().splitlines()
    command = next(it.partition("=")[2] for it in lines if it.startswith("ExecStart="))
    command = command.replace("--container-runtime docker", "--container-runtime process")
    command = command.replace("$$", "$")
    given = " ".join(it.partition("=")[2] for it in lines if it.startswith("Environment="))
    environment = {{**os.environ, **dict(it.split("=", 1) for it in shlex.split(given))}}
    log = open(f"{{root}}/agent.log", "ab")
    started = subprocess.Popen(
        shlex.split(command), env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        start_new_session=True, cwd=root,
    )
    open(f"{{root}}/agent.pid", "w").write(str(started.pid))
"""


class Disks:
    """Disks in `folder`. Each boot gets the variables of `environment`."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = environment
        self._bin = folder / "bin"
        self._bin.mkdir(parents=True)
        self._install()

    def disk(self, name: str) -> Path:
        """The disk of a machine."""
        return self._folder / name

    def log(self, name: str) -> str:
        """Return the log of a machine's boot and agent, or "" before the first boot."""
        logs = (self.disk(name) / "boot.log", self.disk(name) / "agent.log")
        return "".join(log.read_text(errors="replace") for log in logs if log.exists())

    def boot(
        self,
        name: str,
        script: bytes,
        environment: Mapping[str, str],
        entered: Sequence[str] = (),
    ) -> bool:
        """Run the boot script of a machine; whether the machine is on afterwards.

        `entered` is the beginning of the script's command, which enters a network namespace.
        """
        root = self.disk(name)
        root.mkdir()
        path = root / "boot-script"
        path.write_bytes(script)
        with (root / "boot.log").open("wb") as log:
            subprocess.run(
                [*entered, "bash", str(path)],
                env={
                    "PATH": f"{self._bin}:{os.environ['PATH']}",
                    "HOME": str(root),
                    "LANG": "C.UTF-8",
                    "DETCLOUD_ROOT": str(root),
                    **environment,
                    **self._environment,
                },
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=BOOT_SECONDS_MAX,
                check=False,
            )
        commands = root / "commands.log"
        return not (commands.exists() and "systemctl poweroff\n" in commands.read_text())

    def kill(self, name: str) -> None:
        """Kill all processes that were started on the machine, orphans included."""
        mark = os.fsencode(self.disk(name))
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue

    def _install(self) -> None:
        scripts = {name: _QUIET for name in QUIET} | {
            "id": _ID,
            "journalctl": _QUIET,
            "nvidia-ctk": _QUIET,
            "nvidia-smi": _NVIDIA_SMI,
            "curl": _CURL.format(metadata=METADATA, python=sys.executable),
            "systemctl": _SYSTEMCTL.format(python=sys.executable),
            # The machine image's Python has torch; here the environment of the tests has torch.
            "python3": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
        }
        for name, text in scripts.items():
            path = self._bin / name
            path.write_text(text)
            path.chmod(0o755)
