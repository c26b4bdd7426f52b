"""The contract of container runtimes: tests that every runtime must pass.

A suite is a subclass with the fixture `open_node`, which opens a node in a folder and may be called
again.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

import pytest

from detcloud.agent.allocation.allocation import Allocation
from detcloud.agent.runtime import Launch
from tests.integration.agent_cluster import SHADOW
from tests.integration.agent_process import LEAVE, OBEY, PRELUDE
from tests.integration.trial_node import (
    SECONDS_MAX,
    TrialNode,
    exit_record,
    log_text,
    report_lines,
)
from tests.wheels import wheel

OpenNode = Callable[..., TrialNode]
LOG_BYTES_MAX = 64 * 1024
BEATS = """
import threading
def beat():
    with open(f"{home}/out/beats", "a") as beats:
        while True:
            print(time.time(), file=beats, flush=True)
            time.sleep(0.02)
"""
LEAVE_AT_SIGTERM = """
def leave(*_):
    report("exit", reason="preempted", directive_revision=1)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
report("ready")
time.sleep(600)
"""
COUNT = """
report("ready")
for n in range(120):
    print(n, flush=True)
    time.sleep(0.01)
"""


class ContainerRuntimeContract:
    """The tests for every container runtime."""

    @pytest.fixture
    def open_node(self) -> OpenNode:
        raise AssertionError("a suite must define its node")

    @pytest.fixture
    def stop_from_outside(self) -> Callable[[Allocation], None]:
        """Return a function that stops a trial as a system shutdown or container engine does."""
        raise AssertionError("a suite must define how to stop its trials from outside")

    @pytest.fixture
    def node(self, open_node: OpenNode) -> TrialNode:
        return open_node()

    def test_trial_runs_in_its_own_folder_with_configured_variables(
        self, node: TrialNode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AGENT_SECRET", "do-not-pass")
        program = 'report("seen", env=dict(os.environ), cwd=os.getcwd(), spec=sorted(os.listdir('
        program += 'f"{home}/in")))\nprint("hello")\n'
        variables = {"cpu": ["COLOUR=blue", "HOME=/root"], "cuda": []}
        trial = run(node, program + LEAVE, environment_variables=variables)
        (seen, _), ended = report_lines(trial), exit_record(trial)
        home = trial.directory.path
        assert seen["cwd"] == str(home / "code")
        assert seen["env"]["HOME"] == str(home / "home")
        assert seen["env"]["COLOUR"] == "blue"
        assert seen["env"]["CUDA_VISIBLE_DEVICES"] == ""
        assert "AGENT_SECRET" not in seen["env"]
        assert seen["spec"] == ["directives.json", "spec.json"]
        assert (ended["reason"], ended["code"], ended["signal"]) == ("completed", 0, None)
        assert states(trial) == ["PULLING", "STARTING", "RUNNING"]
        assert lines(trial) == ["hello"]

    def test_spawned_process_is_inside_the_trial_and_ends_with_it(self, node: TrialNode) -> None:
        spawned = """
import json, os, sys
print(json.dumps([os.getcwd(), os.environ["HOME"], os.environ["COLOUR"], os.getuid()]), flush=True)
for line in sys.stdin:
    print(line.upper(), end="", flush=True)
"""
        program = f'open("spawned.py", "w").write({spawned!r})\nreport("ready", uid=os.getuid())\n'
        variables = ["COLOUR=blue", "PYTHONPATH=."]
        trial = begin(node, program + "time.sleep(600)\n", environment_variables=variables)
        node.watch(trial, lambda: report_lines(trial))
        with node.runtime.spawn(trial.directory.agent, "spawned") as connection:
            connection.settimeout(SECONDS_MAX)
            answers = connection.makefile("rb")
            home = trial.directory.path
            place = [str(home / "code"), str(home / "home"), "blue", report_lines(trial)[0]["uid"]]
            assert json.loads(answers.readline()) == place
            connection.sendall(b"typed\n")
            assert answers.readline() == b"TYPED\n"
            trial.kill(0)
            node.watch(trial)
            # A reset is an end as well.
            with contextlib.suppress(ConnectionError):
                assert answers.read() == b""

    def test_spawned_process_gets_the_end_of_its_input_and_declared_packages(
        self, node: TrialNode
    ) -> None:
        name, content = wheel("detcloud_probe", script="probe-script")
        packages = {"installer": "pip", "packages": ["--no-index", f"./{name}"], "file": ""}
        spawned = b"""
import shutil, sys
print(len(sys.stdin.buffer.read()), shutil.which("probe-script"), shutil.which("python"))
"""
        files = trial_files('report("ready")\ntime.sleep(600)\n')
        variables = ["PYTHONPATH=."]
        trial = node.begin(
            "4.1",
            files | {name: content, "spawned.py": spawned},
            environment_variables=variables,
            packages=packages,
        )
        node.watch(trial, lambda: report_lines(trial))
        with node.runtime.spawn(trial.directory.agent, "spawned") as connection:
            connection.settimeout(SECONDS_MAX)
            connection.sendall(bytes(1 << 20))
            connection.shutdown(socket.SHUT_WR)
            count, script, python = connection.makefile("rb").read().decode().split()
            assert count == str(1 << 20)
            assert script.startswith(f"{trial.directory.overlay}/")
            assert python.startswith(f"{trial.directory.overlay}/")
        trial.kill(0)
        node.watch(trial)
        with pytest.raises(OSError, match=r"has no (launch|container)"):
            node.runtime.spawn(trial.directory.agent.with_name("unknown"), "spawned")

    def test_exit_of_a_failed_trial_has_the_code_and_the_end_of_the_log(
        self, node: TrialNode
    ) -> None:
        trial = run(node, 'print("the learning rate is a fish")\nsys.exit(7)\n')
        ended = exit_record(trial)
        assert (ended["reason"], ended["code"]) == ("errored", 7)
        assert "exit code 7" in ended["message"]
        assert "the learning rate is a fish" in ended["message"]

    def test_exit_of_a_trial_ended_by_a_signal_names_the_signal(self, node: TrialNode) -> None:
        trial = run(node, "os.kill(os.getpid(), signal.SIGSEGV)\n")
        assert (exit_record(trial)["code"], exit_record(trial)["signal"]) == (None, signal.SIGSEGV)

    def test_killed_trial_may_use_the_grace_period(self, node: TrialNode) -> None:
        trial = begin(node, LEAVE_AT_SIGTERM)
        node.watch(trial, lambda: report_lines(trial))
        # Longer than `watch` waits, so that no timeout ends the trial.
        trial.kill(3_600_000)
        node.watch(trial)
        assert exit_record(trial)["reason"] == "preempted"

    def test_directive_of_a_stop_reaches_a_program_without_handler(self, node: TrialNode) -> None:
        trial = begin(node, 'report("ready")\n' + OBEY)
        node.watch(trial, lambda: report_lines(trial))
        # Longer than `watch` waits, so that no timeout ends the trial.
        trial.kill(3_600_000, saves=True)
        node.watch(trial)
        assert exit_record(trial)["reason"] == "preempted"

    def test_only_the_program_below_a_shell_gets_the_signal(self, node: TrialNode) -> None:
        program = f"""
inner = {PRELUDE + LEAVE_AT_SIGTERM!r}
shell = subprocess.run(["sh", "-c", '"$0" -c "$1"; exit 7', sys.executable, inner])
sys.exit(shell.returncode)
"""
        trial = begin(node, program)
        node.watch(trial, lambda: report_lines(trial))
        trial.kill(3_600_000, saves=True)
        node.watch(trial)
        # The shell continued after the program.
        assert (exit_record(trial)["reason"], exit_record(trial)["code"]) == ("preempted", 7)

    def test_listener_gets_the_signal_late(self, node: TrialNode) -> None:
        program = """
def leave(*_):
    report("signal", seconds=time.monotonic() - stopped)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
with open("/proc/self/stat") as file:
    ticks = file.read().rpartition(")")[2].split()[19]
with open(f"{home}/out/.rank-0", "w") as claim:
    claim.write(f"{os.getpid()} {ticks}")
report("ready")
while not directives().get("preempt"):
    time.sleep(0.01)
stopped = time.monotonic()
time.sleep(600)
"""
        trial = begin(node, program)
        node.watch(trial, lambda: report_lines(trial))
        trial.kill(6000, saves=True)
        node.watch(trial)
        # Two thirds of 6 s after the directive, which comes right before; half a second for that.
        assert report_lines(trial)[-1]["seconds"] > 3.5

    def test_external_stop_arrives_as_a_directive(
        self, node: TrialNode, stop_from_outside: Callable[[Allocation], None]
    ) -> None:
        trial = begin(node, 'report("ready")\n' + OBEY)
        node.watch(trial, lambda: report_lines(trial))
        stop_from_outside(trial)
        node.watch(trial)
        assert exit_record(trial)["reason"] == "preempted"

    def test_kill_ends_a_stubborn_trial_after_the_grace_period(self, node: TrialNode) -> None:
        program = 'signal.signal(signal.SIGTERM, lambda *_: report("asked"))\nreport("ready")\n'
        trial = begin(node, program + "while True:\n    time.sleep(0.05)\n")
        node.watch(trial, lambda: report_lines(trial))
        trial.kill(2000)
        node.watch(trial)
        assert [line["kind"] for line in report_lines(trial)] == ["ready", "asked"]
        assert (exit_record(trial)["reason"], exit_record(trial)["signal"]) == (
            "killed",
            signal.SIGKILL,
        )

    def test_later_kill_may_shorten_the_grace_period(self, node: TrialNode) -> None:
        program = (
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nreport('ready')\ntime.sleep(600)\n"
        )
        trial = begin(node, program)
        node.watch(trial, lambda: report_lines(trial))
        # Longer than `watch` does.
        trial.kill(3_600_000)
        trial.kill(0)
        node.watch(trial)
        assert exit_record(trial)["reason"] == "killed"

    def test_descendants_of_a_trial_end_with_the_trial(self, node: TrialNode) -> None:
        # A daemon, which leaves its group and its parent.
        program = f"""
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        {BEATS.replace(chr(10), chr(10) + " " * 8)}
        beat()
    os._exit(0)
while not os.path.exists(f"{{home}}/out/beats"):
    time.sleep(0.01)
"""
        trial = run(node, program + LEAVE)
        beats = trial.directory.out / "beats"
        before = beats.stat().st_size
        time.sleep(0.3)
        assert beats.stat().st_size == before

    def test_startup_hook_becomes_the_trial(self, node: TrialNode) -> None:
        hook = "export GREETING=hello\nulimit -n 77\nsleep 60 &\ncd /\n"
        program = """
import resource
files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
report("seen", greeting=os.environ["GREETING"], files=files, cwd=os.getcwd())
"""
        trial = run(node, program + LEAVE, hook=hook)
        seen = report_lines(trial)[0]
        assert (seen["greeting"], seen["files"]) == ("hello", 77)
        assert seen["cwd"] == str(trial.directory.code)
        assert states(trial) == ["PULLING", "STARTING", "RUNNING"]

    @pytest.mark.parametrize(
        ("hook", "code", "found"), [("false\n", 1, "startup-hook.sh failed"), ("exit 0\n", 0, "")]
    )
    def test_failed_hook_ends_the_trial_and_hook_with_exit_0_does_not(
        self, node: TrialNode, hook: str, code: int, found: str
    ) -> None:
        trial = run(node, PRELUDE + LEAVE, hook=hook)
        ended = exit_record(trial)
        assert (ended["code"], ended["reason"]) == (code, "errored" if code else "completed")
        assert found in ended["message"]
        assert ("RUNNING" in states(trial)) == (code == 0)

    @pytest.mark.parametrize("hook", [None, "python3 -c 'import detcloud_probe'\n"])
    def test_runtime_installs_declared_packages_once(
        self, node: TrialNode, hook: str | None
    ) -> None:
        name, content = wheel("detcloud_probe", script="probe-script")
        lines = ["--no-index", f"./{name}"]
        packages = {"installer": "pip", "packages": lines, "file": ""}
        program = """
import detcloud_probe, subprocess
report("seen", version=detcloud_probe.VERSION, prefix=sys.prefix)
print(subprocess.run(["probe-script"], capture_output=True, text=True).stdout)
"""
        logs = []
        for epoch in (1, 2):
            files = trial_files(program + LEAVE, hook) | {name: content}
            trial = node.run(f"4.{epoch}", files, epoch=epoch, packages=packages)
            assert exit_record(trial)["reason"] == "completed", log_text(trial)
            seen = report_lines(trial)[0]
            assert (seen["version"], seen["prefix"]) == ("1", str(trial.directory.overlay))
            assert "script /" in log_text(trial), log_text(trial)
            logs.append(log_text(trial))
        assert "environment.pip: packages installed in" in logs[0]
        assert "environment.pip: packages found on this machine" in logs[1]

    def test_long_log_keeps_the_beginning_and_the_end(self, open_node: OpenNode) -> None:
        node = open_node(log_bytes_max=LOG_BYTES_MAX)
        trial = run(node, 'for n in range(30000):\n    print(f"{n:09d}")\n' + LEAVE)
        found = lines(trial)
        assert found[0] == "000000000"
        assert found[-1] == "000029999"
        assert (
            "[detcloud] the log has reached its limit of 0 MiB: only its end will follow" in found
        )
        # The limit, the last 64 KiB and two notices.
        assert trial.directory.log.stat().st_size < LOG_BYTES_MAX + 64 * 1024 + 300

    def test_second_agent_continues_running_trials(self, open_node: OpenNode) -> None:
        node = open_node()
        first = begin(node, COUNT + OBEY)
        node.watch(first, lambda: report_lines(first))
        again = open_node(node)
        trial = again.node.allocations()[0]
        trial.apply_directives(
            {"revision": 2, "length": 4, "closed": True, "preempt": {"reason": "x"}}
        )
        again.watch(trial)
        ended = exit_record(trial)
        assert (ended["reason"], ended["code"], ended["directive_revision"]) == ("preempted", 0, 2)
        assert states(trial) == ["PULLING", "STARTING", "RUNNING"]
        assert lines(trial) == [str(n) for n in range(120)]

    def test_next_agent_reports_an_unseen_exit(self, open_node: OpenNode) -> None:
        node = open_node()
        first = begin(node, 'report("ready")\ntime.sleep(0.3)\nsys.exit(7)\n')
        node.watch(first, lambda: report_lines(first))
        node.runtime.close()
        time.sleep(1.0)
        again = open_node(node)
        trial = again.node.allocations()[0]
        again.watch(trial)
        assert (exit_record(trial)["reason"], exit_record(trial)["code"]) == ("errored", 7)

    def test_launch_is_started_once(self, node: TrialNode) -> None:
        trial = begin(node, 'report("ready")\ntime.sleep(600)\n')
        node.watch(trial, lambda: report_lines(trial))
        with pytest.raises(RuntimeError, match="already"):
            node.runtime.start(trial.directory.agent, Launch([], {}, "/", "/dev/null"))

    def test_removal_of_a_container_may_be_repeated(self, node: TrialNode) -> None:
        trial = run(node, LEAVE)
        for _ in range(2):
            node.runtime.remove(trial.directory.agent)
        assert not trial.is_active


def begin(node: TrialNode, program: str, hook: str | None = None, **spec: Any) -> Allocation:
    """Start a trial that runs `program` in place of the trial launcher."""
    return node.begin("4.1", trial_files(program, hook), **spec)


def trial_files(program: str, hook: str | None = None) -> dict[str, str]:
    """Return model code with `program` in place of the trial launcher."""
    text = program if program.startswith(PRELUDE) else PRELUDE + program
    files = {SHADOW[0]: "", SHADOW[1]: "", "detcloud/launch/trial.py": text}
    return files if hook is None else {**files, "startup-hook.sh": hook}


def run(node: TrialNode, program: str, hook: str | None = None, **spec: Any) -> Allocation:
    """Run a trial with `program` until the exit is recorded."""
    trial = begin(node, program, hook, **spec)
    node.watch(trial)
    return trial


def states(trial: Allocation) -> list[str]:
    """Return the reported container states."""
    log_lines = trial.lines("agent", 0, 1 << 20)
    return [line.fields["state"] for line in log_lines if line.kind == "container"]


def lines(trial: Allocation) -> list[str]:
    """Return the lines that the trial printed, without the agent's first lines."""
    found = log_text(trial).splitlines()
    return [line for line in found if not line.startswith("[detcloud] image ")]
