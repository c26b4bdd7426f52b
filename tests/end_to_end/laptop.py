"""A cluster in a separate folder, used as by a person: with the `detcloud` command."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from detcloud.client import Client
from detcloud.shared.processes import Process, is_alive, read_process
from tests.end_to_end.home_guard import mentions, pids
from tests.own_ports import record_own_port
from tests.patience import PATIENCE, wait_until

ROOT = Path(__file__).parents[2]
DIGITS = ROOT / "examples" / "digits"
# -P as in the installed command: modules are not imported from the current folder.
DETCLOUD = (sys.executable, "-P", "-m", "detcloud.cli.main")
COMMAND_SECONDS_MAX = 120.0 * PATIENCE
GUARD = (sys.executable, "-I", "-S", str(Path(__file__).with_name("home_guard.py")))


class Running(NamedTuple):
    """A trial's processes: the leader of the process group, and the supervisor above."""

    allocation: str
    leader: Process
    supervisor: Process


class Laptop:
    """A home folder of a cluster.

    No process of the cluster runs before the first command, nor after `end` or the end of this
    process, even if killed.
    """

    def __init__(self, home: Path, **variables: str) -> None:
        self.home = home
        self.environment = environment(home) | variables

    def run(
        self, *words: object, code: int = 0, seconds: float = COMMAND_SECONDS_MAX
    ) -> subprocess.CompletedProcess[str]:
        """Run `detcloud WORDS`, which must end with the exit code `code`."""
        done = self.shell([*DETCLOUD, *map(str, words)], seconds)
        assert done.returncode == code, f"{words} ended with {done.returncode}: {done}"
        return done

    def shell(
        self, command: Sequence[str], seconds: float = COMMAND_SECONDS_MAX
    ) -> subprocess.CompletedProcess[str]:
        """Run any command in the newcomer's environment."""
        _GUARD.add_home(self.home)
        return subprocess.run(
            command,
            env=self.environment,
            cwd=self.home.parent,
            capture_output=True,
            text=True,
            timeout=seconds,
            stdin=subprocess.DEVNULL,
        )

    def json(self, *words: object, code: int = 0) -> Any:
        """Return the parsed output of `detcloud WORDS --json`."""
        return json.loads(self.run(*words, "--json", code=code).stdout)

    def await_completion(self, experiment: int) -> None:
        """Wait until an experiment has ended with success."""
        assert self.run("wait", experiment).stdout.split()[-1] == "finished"

    def replay(self, experiment: int) -> None:
        """Replay an experiment and all trials; the states must equal the recorded states."""
        replayed = self.run("replay", experiment).stdout
        assert replayed.endswith("all match the recorded state\n"), replayed

    def spawn(self, *words: object) -> subprocess.Popen[str]:
        """Start `detcloud WORDS` in the background; the output goes to a pipe."""
        _GUARD.add_home(self.home)
        return subprocess.Popen(
            [*DETCLOUD, *map(str, words)],
            env=self.environment,
            cwd=self.home.parent,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
        )

    def record(self) -> dict[str, Any]:
        """Return the fields of server.json; {} without a readable file."""
        try:
            fields: dict[str, Any] = json.loads((self.home / "server.json").read_text())
        except (OSError, ValueError):
            return {}
        return fields

    @contextlib.contextmanager
    def cluster(self) -> Iterator[Client]:
        """Yield a client of the running server."""
        token = (self.home / "token").read_text().strip()
        with Client(self.record()["url"], token) as cluster:
            yield cluster

    def trials(self, experiment: int) -> list[dict[str, Any]]:
        """Return the experiment's trials from the API.

        For polling: a command would take a third of a second of a core each time.
        """
        with self.cluster() as cluster:
            return [trial.data for trial in cluster.experiment(experiment).trials()]

    def log(self, trial: int) -> str:
        """Return the trial's current log from the API."""
        with self.cluster() as cluster:
            return "".join(cluster.trial(trial).logs())

    def running(self) -> list[Running]:
        """Return the trials with a running process."""
        found = []
        for path in sorted(self.home.glob("agent/allocations/*/agent/process.json")):
            with contextlib.suppress(OSError, ValueError):
                fields = json.loads(path.read_text())
                leader, supervisor = read_process(fields["pid"]), read_process(fields["supervisor"])
                same = leader is not None and str(leader.started_ticks) == fields["start_time"]
                if leader is not None and supervisor is not None and same:
                    found.append(Running(path.parts[-3], leader, supervisor))
        return found

    def processes(self) -> list[Process]:
        """Return all processes with this home in the command, environment or working directory."""
        home = os.fsencode(self.home)
        processes = (
            read_process(pid) for pid in pids() if pid != os.getpid() and mentions(pid, home)
        )
        return [process for process in processes if process is not None]

    def end(self) -> list[Process]:
        """Run `detcloud down`; kill and return the surviving processes."""
        self.run("down")
        left = self.processes()
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, left)), what=f"the end of {left}")
        return left


@contextlib.contextmanager
def start_cluster(folder: Path, slots: int, pools: str = "", **variables: str) -> Iterator[Laptop]:
    """Yield a cluster with a home in `folder`, for a module's tests; check that no process remains.

    `pools` is the text of the cluster's configuration, and `variables` are environment variables.
    """
    one = Laptop(folder / "home", **variables)
    record_own_port(one.home)
    words: list[object] = ["up", "--slots", slots]
    if pools:
        (folder / "pools.yaml").write_text(pools)
        words += ["--config", folder / "pools.yaml"]
    try:
        one.run(*words)
        yield one
    finally:
        assert one.end() == [], "something outlived `detcloud down`"


class HomeGuard:
    """A process that ends the clusters of all homes if this process ends without cleaning up.

    The first home starts the process.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._homes: set[Path] = set()

    def add_home(self, home: Path) -> None:
        """Guard a further home."""
        if home in self._homes:
            return
        self._homes.add(home)
        if self._process is None:
            self._process = subprocess.Popen(
                GUARD, stdin=subprocess.PIPE, env={}, start_new_session=True
            )
            atexit.register(self._process.communicate)
        assert self._process.stdin is not None
        self._process.stdin.write(os.fsencode(home) + b"\n")
        self._process.stdin.flush()


_GUARD = HomeGuard()


def environment(home: Path) -> dict[str, str]:
    """Return a newcomer's environment: ours without variables that name other clusters."""
    inherited = {name: value for name, value in os.environ.items() if "DETCLOUD" not in name}
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "harness")))
    return {**inherited, "PYTHONPATH": paths, "DETCLOUD_HOME": str(home), "HOME": str(home.parent)}
