"""No room for a moment: a limit on the size of files stands in for the end of the disk.

The limit is set from outside on one process at a time, so that the others have room.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import time
from pathlib import Path

import pytest

from tests.integration.agent_cluster import FakeCluster
from tests.integration.agent_process import GO, LEAVE, OBEY, PRELUDE, AgentProcess
from tests.patience import PROCESS_SECONDS_MAX, wait_until

pytestmark = pytest.mark.end_to_end


def limit(pid: int, size: int = resource.RLIM_INFINITY) -> None:
    """No file of that process may grow beyond `size` bytes."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def process_of(agent: AgentProcess, allocation: str) -> dict[str, int]:
    path = agent.work / f"allocations/{allocation}/agent/process.json"
    wait_until(path.exists)
    found: dict[str, int] = json.loads(path.read_bytes())
    return found


def test_an_exit_that_the_agent_cannot_record_is_recorded_when_there_is_room(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    cluster.assign("4.1", PRELUDE + 'report("ready")\n' + GO + 'report("late")\n' + LEAVE)
    process = agent.start()
    wait_until(lambda: cluster.lines("4.1"))
    limit(process.pid, 0)
    agent.let_go("4.1")
    # What the trial wrote arrives all the same.
    wait_until(lambda: [line["kind"] for line in cluster.lines("4.1")] == ["ready", "late", "exit"])
    wait_until((agent.work / "allocations/4.1/agent/exit.json").exists)
    time.sleep(1.2)
    assert cluster.exit_record("4.1") is None
    assert process.poll() is None
    limit(process.pid)
    wait_until(lambda: cluster.exit_record("4.1"))
    assert cluster.kinds("4.1") == ["PULLING", "STARTING", "RUNNING", "exited"]
    assert (cluster.exit_record("4.1") or {})["reason"] == "completed"


def test_directives_that_cannot_be_written_reach_the_trial_later(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    cluster.assign("4.1", PRELUDE + 'report("ready")\n' + OBEY)
    process = agent.start()
    wait_until(lambda: cluster.lines("4.1"))
    limit(process.pid, 0)
    wish = {"deadline_ms": None, "reason": "a pause"}
    calls = len(cluster.calls)
    cluster.change("4.1", directives={"revision": 2, "length": 1, "preempt": wish})
    wait_until(lambda: len(cluster.calls) > calls)
    directives = agent.work / "allocations/4.1/in/directives.json"
    assert json.loads(directives.read_bytes())["revision"] == 1
    limit(process.pid)
    wait_until(lambda: cluster.exit_record("4.1"))
    assert (cluster.exit_record("4.1") or {})["reason"] == "preempted"


def test_a_trial_is_killed_even_when_the_request_finds_no_room(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    cluster.assign("4.1", PRELUDE + 'report("ready")\ntime.sleep(600)\n')
    process = agent.start()
    wait_until(lambda: cluster.lines("4.1"))
    process_of(agent, "4.1")
    limit(process.pid, 0)
    cluster.change("4.1", state="kill")
    wait_until((agent.work / "allocations/4.1/agent/exit.json").exists)
    limit(process.pid)
    wait_until(lambda: cluster.exit_record("4.1"))
    assert (cluster.exit_record("4.1") or {})["reason"] == "killed"


def test_a_trial_that_finds_no_room_to_start_fails_clearly_and_the_next_one_starts(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    process = agent.start()
    wait_until(lambda: cluster.calls)
    limit(process.pid, 0)
    cluster.assign("4.1", PRELUDE + LEAVE)
    # What was to tell of the failure is begun, and empty.
    report = agent.work / "allocations/4.1/agent/report-agent.jsonl"
    wait_until(report.exists)
    assert report.stat().st_size == 0
    limit(process.pid)
    wait_until(lambda: cluster.exit_record("4.1"))
    found = cluster.exit_record("4.1")
    assert found is not None
    assert found["reason"] == "start_failed"
    assert "File too large" in found["message"]
    cluster.assign("5.1", PRELUDE + LEAVE)
    wait_until(lambda: cluster.exit_record("5.1"))
    assert (cluster.exit_record("5.1") or {})["reason"] == "completed"
    assert process.poll() is None


def test_a_supervisor_without_room_keeps_the_trial_and_its_exit(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    program = """
for n in range(5):
    print("unheard", n, flush=True)
os.write(out, b'{"kind": "progress", "value": 1}\\n')
"""
    rest = "while not os.path.exists(f'{home}/home/went'): time.sleep(0.01)\nprint('heard')\n"
    end = "sys.exit(3)\n"
    cluster.assign("4.1", PRELUDE + 'report("ready")\n' + GO + program + rest + end)
    agent.start()
    wait_until(lambda: cluster.lines("4.1"))
    supervisor = process_of(agent, "4.1")["supervisor"]
    limit(supervisor, 0)
    agent.let_go("4.1")
    # A log without room stops no trial.
    wait_until(lambda: len(cluster.lines("4.1")) == 2)
    (agent.work / "allocations/4.1/home/went").touch()
    # What was to become the record is begun, and empty.
    wait_until((agent.work / "allocations/4.1/agent/.exit.json.new").exists)
    assert not (agent.work / "allocations/4.1/agent/exit.json").exists()
    limit(supervisor)
    wait_until(lambda: cluster.exit_record("4.1"))
    assert (cluster.exit_record("4.1") or {})["code"] == 3
    # Five lines `unheard N` of 10 bytes and `heard` with its newline, 6 bytes.
    assert cluster.log["4.1"] == b"[detcloud] 56 bytes of the log were lost: File too large\n"


def test_an_agent_whose_own_log_is_full_goes_on(agent: AgentProcess, cluster: FakeCluster) -> None:
    agent.errors = Path("/dev/full")
    cluster.assign("4.1", PRELUDE + LEAVE)
    process = agent.start()
    wait_until(lambda: cluster.exit_record("4.1"))
    cluster.fence()
    wait_until(lambda: cluster.epoch == 3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PROCESS_SECONDS_MAX) == 0


def test_an_agent_says_once_that_it_lacks_room_and_when_it_has_it_again(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    cluster.assign("4.1", PRELUDE + 'report("ready")\n' + GO + LEAVE)
    # Standard error as a pipe: the limit is for files.
    receiver, sender = os.pipe()
    agent.errors = Path(f"/proc/self/fd/{sender}")
    process = agent.start()
    os.close(sender)
    wait_until(lambda: cluster.lines("4.1"))
    limit(process.pid, 0)
    agent.let_go("4.1")
    os.set_blocking(receiver, False)
    with os.fdopen(receiver, "rb", buffering=0) as pipe:
        said = b""

        def is_trouble_said() -> bool:
            nonlocal said
            said += pipe.read(65536) or b""
            return b"4.1 could not be monitored" in said

        wait_until(is_trouble_said)
        # It tries again each second.
        time.sleep(2.5)
        limit(process.pid)
        wait_until(lambda: cluster.exit_record("4.1"))
        process.terminate()
        process.wait(PROCESS_SECONDS_MAX)
        said += pipe.read() or b""
    lines = [line for line in said.decode().splitlines() if "4.1" in line]
    assert len(lines) == 2, lines
    assert "4.1 could not be monitored, trying again: [Errno 27] File too large" in lines[0]
    assert lines[1].endswith("4.1 is monitored again")
