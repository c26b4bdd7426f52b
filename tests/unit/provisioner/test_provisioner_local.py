"""Agent processes as instances, with crashes, agents that ignore signals, and a changed address."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from control_plane.fleet.records import IntentRow
from detcloud.shared.processes import PROC, is_alive, read_process
from provisioner.clouds.local.provider import (
    ENDED_INSTANCE_TTL_MS,
    NOTICE_FILE,
    STOP_MS_MAX,
    LocalProcesses,
)
from provisioner.clouds.provider import CloudError, CloudInstance, ConfigurationError
from provisioner.model import InstanceStatus
from tests.patience import wait_until

# A handler of the signal could run just before `pause`, which would then wait for ever.
POLITE = "import signal as s; s.pthread_sigmask(s.SIG_BLOCK, {s.SIGTERM}); s.sigwait({s.SIGTERM})"
STUBBORN = (
    "import signal, sys\n"
    "signal.signal(signal.SIGTERM, lambda *_: 0)\n"
    "open(sys.argv[2] + '/begun', 'w').close()\n"
    "while True: signal.pause()"
)
# An agent that starts another process, like a trial, and continues.
PARENT = (
    "import os, signal, subprocess, sys\n"
    "subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'],"
    " env={'HOME': sys.argv[2] + '/home'}, start_new_session=True)\n"
    "open(sys.argv[2] + '/begun', 'w').close()\n"
    "signal.pause()"
)


@dataclass
class Machine:
    """The test's machine with a virtual clock."""

    folder: Path
    script: str = POLITE
    now_ms: int = 1_000_000
    place: str = "http://here"
    section: str = "{}"

    @property
    def cloud(self) -> LocalProcesses:
        """Return a new provider object on the same folder, as in another process."""

        def command(name: str, request: IntentRow, work: Path) -> list[str]:
            return [sys.executable, "-c", self.script, "detcloud", str(work)]

        clock: Callable[[], int] = lambda: self.now_ms  # noqa: E731
        return LocalProcesses(self.folder, command, self.place, clock, section=self.section)

    def request(self, name: str = "one", count: int = 1) -> IntentRow:
        offering = self.cloud.offerings()[0]
        return IntentRow(name, "c1", "p", offering, count, f"{name:0<20}", 0)

    def launch_one(self) -> str:
        (launched,) = self.cloud.launch(self.request())
        return launched.id

    def find_instance(self, name: str) -> CloudInstance:
        (listed,) = [
            instance for instance in self.cloud.list_instances("c1") if instance.id == name
        ]
        return listed

    def status(self, name: str) -> InstanceStatus:
        return self.find_instance(name).status

    def agents(self) -> list[int]:
        """Return the ids of running agent processes, including processes without a command yet."""
        records = [json.loads(path.read_text()) for path in self.folder.glob("*/instance.json")]
        started = {
            record["pid"]: record["started_ticks"] for record in records if record.get("pid")
        }
        running = [process for pid in started if (process := read_process(pid)) is not None]
        return [item.pid for item in running if item.started_ticks == started[item.pid]]

    def processes(self) -> list[int]:
        process_ids = []
        for entry in PROC.iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and int(entry.name) != os.getpid():
                    words = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                    process = (
                        read_process(int(entry.name)) if os.fsencode(self.folder) in words else None
                    )
                    process_ids += [process.pid] if process else []
        return process_ids


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    local_machine = Machine(tmp_path / "instances")
    yield local_machine
    for pid in {*local_machine.agents(), *local_machine.processes()}:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def test_offering_has_the_slots_of_the_settings(machine: Machine) -> None:
    machine.section = '{"instance_slots": 3}'
    assert [offering.slots for offering in machine.cloud.offerings()] == [3]
    machine.section = '{"instance_slots": 0}'
    with pytest.raises(ConfigurationError, match="instance_slots must be from 1 to 1024, not 0"):
        machine.cloud.offerings()


def test_crash_before_the_pid_is_stored_starts_no_second_agent(machine: Machine) -> None:
    name = machine.launch_one()
    path = machine.folder / name / "instance.json"
    record = json.loads(path.read_text())
    wait_until(lambda: machine.processes() == [record["pid"]])
    path.write_text(json.dumps({**record, "pid": None}))
    machine.launch_one()
    assert json.loads(path.read_text())["pid"] == record["pid"]
    assert machine.processes() == [record["pid"]]


def test_crash_before_the_start_starts_the_agent_later(machine: Machine) -> None:
    request = machine.request()
    folder = machine.folder / "local-one000000000-0"
    (folder / "work").mkdir(parents=True)
    record = {"request": asdict(request), "launched_ms": 1, "place": "http://here"}
    (folder / "instance.json").write_text(json.dumps(record))
    (launched,) = machine.cloud.launch(request)
    assert launched.status is InstanceStatus.RUNNING
    # Immediately after the start, a process has no command yet.
    wait_until(lambda: len(machine.processes()) == 1)


def test_stubborn_agent_is_killed(machine: Machine) -> None:
    machine.script = STUBBORN
    name = machine.launch_one()
    wait_until((machine.folder / name / "work" / "begun").exists)
    machine.cloud.terminate([name])
    machine.now_ms += STOP_MS_MAX
    assert machine.status(name) is InstanceStatus.TERMINATING
    machine.now_ms += 1
    wait_until(lambda: machine.status(name) is InstanceStatus.TERMINATED)
    assert machine.processes() == []


def test_children_of_a_killed_agent_are_killed(machine: Machine) -> None:
    machine.script = PARENT
    name = machine.launch_one()
    wait_until(lambda: (machine.folder / name / "work" / "begun").exists())
    wait_until(lambda: len(machine.processes()) == 2)
    record = json.loads((machine.folder / name / "instance.json").read_text())
    (child,) = [pid for pid in machine.processes() if pid != record["pid"]]
    process = read_process(child)
    assert process is not None
    os.kill(record["pid"], signal.SIGKILL)
    wait_until(lambda: machine.status(name) is InstanceStatus.TERMINATED)
    assert not is_alive(process)


def test_spares_a_users_reader_of_the_log(machine: Machine, tmp_path: Path) -> None:
    # The folder's own path contains the program's name, as in a home folder.
    machine.folder = tmp_path / "detcloud" / "instances"
    name = machine.launch_one()
    with subprocess.Popen(["tail", "-f", str(machine.folder / name / "agent.log")]) as reader:
        try:
            machine.cloud.terminate([name])
            wait_until(lambda: machine.status(name) is InstanceStatus.TERMINATED)
            assert reader.poll() is None
        finally:
            reader.kill()


def test_agent_of_another_server_address_is_stopped(machine: Machine) -> None:
    name = machine.launch_one()
    machine.place = "http://there"
    assert machine.status(name) is InstanceStatus.STOPPED
    machine.cloud.terminate([name])
    wait_until(lambda: machine.status(name) is InstanceStatus.TERMINATED)


def test_notice_file_is_listed(machine: Machine) -> None:
    name = machine.launch_one()
    assert machine.find_instance(name).notice_ms is None
    notice = {"deadline_ms": 5_000_000, "reason": "tried out"}
    (machine.folder / name / "work" / NOTICE_FILE).write_text(json.dumps(notice))
    assert machine.find_instance(name).notice_ms == 5_000_000


def test_ended_instance_is_listed_for_an_hour(machine: Machine) -> None:
    name = machine.launch_one()
    machine.cloud.terminate([name])
    wait_until(lambda: machine.status(name) is InstanceStatus.TERMINATED)
    machine.now_ms += ENDED_INSTANCE_TTL_MS
    assert machine.status(name) is InstanceStatus.TERMINATED
    machine.now_ms += 1
    machine.cloud.list_instances("c1")
    assert not (machine.folder / name).exists()


def test_ignores_names_outside_the_folder(machine: Machine) -> None:
    machine.launch_one()
    wait_until(lambda: len(machine.processes()) == 1)
    machine.cloud.terminate(["../one", ".", "/etc"])
    assert len(machine.processes()) == 1


def test_missing_program_raises_cloud_error(machine: Machine, tmp_path: Path) -> None:
    cloud = LocalProcesses(
        tmp_path / "instances", lambda *_: [str(tmp_path / "none")], "http://here", lambda: 1
    )
    with pytest.raises(CloudError, match="no agent could be started"):
        cloud.launch(machine.request())


def test_stop_with_a_clock_ahead_completes(machine: Machine) -> None:
    machine.script = STUBBORN
    name = machine.launch_one()
    wait_until((machine.folder / name / "work" / "begun").exists)
    machine.now_ms += 86_400_000
    machine.cloud.terminate([name])
    machine.now_ms -= 86_400_000
    wait_until(lambda: machine.status(name) is InstanceStatus.TERMINATED)
