"""An agent as a process, programs in place of trials, and checks of processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.integration.agent_cluster import JOIN_TOKEN
from tests.patience import wait_until

HARNESS = Path(__file__).parents[2] / "harness"
PRELUDE = """
import json, os, signal, subprocess, sys, time
home = os.environ["DETCLOUD_TRIAL_DIR"]
out = os.open(f"{home}/out/report-0.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
def report(kind, **fields):
    line = json.dumps({"kind": kind, "time_ms": time.time_ns() // 10**6, **fields}) + "\\n"
    os.write(out, line.encode())
def directives():
    with open(f"{home}/in/directives.json") as file:
        return json.load(file)
"""
LEAVE = 'report("exit", reason="completed", directive_revision=directives()["revision"])\n'
# The test says when: `AgentProcess.let_go`.
GO = """
while not os.path.exists(f"{home}/home/go"):
    time.sleep(0.01)
"""
OBEY = """
while not directives().get("preempt"):
    time.sleep(0.01)
report("exit", reason="preempted", directive_revision=directives()["revision"])
"""


class AgentProcess:
    """Starts and ends agents in a work directory."""

    def __init__(self, work: Path, url: str) -> None:
        self.work = work
        self.url = url
        self.token_file = work.parent / "token"
        self.token_file.write_text(JOIN_TOKEN)
        self.errors = work.parent / "agent.err"
        self.python = sys.executable
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str, inside: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Start the agent; `inside` is a command that wraps the agent's command line."""
        command = [*inside, self.python, "-m", "detcloud.agent", "--url", self.url]
        command += ["--token-file", str(self.token_file), "--name", "node", "--pool", "default"]
        command += ["--work-dir", str(self.work), "--slots", "2", *options]
        environment = {**os.environ, "PYTHONPATH": str(HARNESS), "AGENT_SECRET": "do-not-pass"}
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(command, env=environment, stderr=errors)
        return self.process

    def let_go(self, allocation: str) -> None:
        """End the wait of a trial whose program contains GO."""
        (self.work / f"allocations/{allocation}/home/go").touch()

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        for path in self.work.glob("allocations/*/agent/process.json"):
            exited = path.with_name("exit.json")
            if not exited.exists():
                with contextlib.suppress(ProcessLookupError):
                    # A supervisor with a kill request ends its trial and all descendants.
                    path.with_name("kill.json").write_text('{"grace_ms": 0}')
                    os.kill(json.loads(path.read_bytes())["supervisor"], signal.SIGTERM)
                    wait_until(exited.exists, what=f"the record {exited}")


def alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        # ProcessLookupError: the process ended between opening and reading the file.
        return False
    return status.rpartition(")")[2].split()[0] != "Z"
