"""A full disk for a while, simulated by a limit on file sizes.

The limit is set from outside on a single process at a time, so that other processes have room.
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
    """Limit the size of the files that the process writes to `size` bytes."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def process_of(agent: AgentProcess, allocation: str) -> dict[str, int]:
    path = agent.work / f"allocations/{allocation}/agent/process.json"
    wait_until(path.exists)
    found: dict[str, int] = json.loads(path.read_bytes())
    return found


def test_exit_that_cannot_be_recorded_is_recorded_after_space_is_free(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    cluster.assign("4.1", PRELUDE + 'report("ready")\n' + GO + 'report("late")\n' + LEAVE)
    process = agent.start()
    wait_until(lambda: cluster.lines("4.1"))
    limit(process.pid, 0)
    agent.let_go("4.1")
    # Lines that the trial wrote still arrive.
    wait_until(lambda: [line["kind"] for line in cluster.lines("4.1")] == ["ready", "late", "exit"])
    wait_until((agent.work / "allocations/4.1/agent/exit.json").exists)
    time.sleep(1.2)
    assert cluster.exit_record("4.1") is None
    assert process.poll() is None
    limit(process.pid)
    wait_until(lambda: cluster.exit_record("4.1"))
    assert cluster.kinds("4.1") == ["PULLING", "STARTING", "RUNNING", "exited"]
    assert (cluster.exit_record("4.1") or {})["reason"] == "completed"


def test_unwritable_directives_reach_the_trial_later(
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


def test_trial_is_killed_even_without_room_for_the_request(
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


def test_start_without_disk_space_fails_and_the_next_trial_starts(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    process = agent.start()
    wait_until(lambda: cluster.calls)
    limit(process.pid, 0)
    cluster.assign("4.1", PRELUDE + LEAVE)
    # The file for the failure exists and is empty.
    report = agent.work / "allocations/4.1/agent/report-agent.jsonl"
    wait_until(report.exists)
    assert report.stat().st_size == 0
    limit(process.pid)
    wait_until(lambda: cluster.exit_record("4.1"))
    record = cluster.exit_record("4.1")
    assert record is not None
    assert record["reason"] == "start_failed"
    assert "File too large" in record["message"]
    cluster.assign("5.1", PRELUDE + LEAVE)
    wait_until(lambda: cluster.exit_record("5.1"))
    assert (cluster.exit_record("5.1") or {})["reason"] == "completed"
    assert process.poll() is None


def test_supervisor_without_disk_space_keeps_the_trial_and_the_exit(
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
    # A full log does not stop a trial.
    wait_until(lambda: len(cluster.lines("4.1")) == 2)
    (agent.work / "allocations/4.1/home/went").touch()
    # The temporary file for the exit record exists and is empty.
    wait_until((agent.work / "allocations/4.1/agent/.exit.json.new").exists)
    assert not (agent.work / "allocations/4.1/agent/exit.json").exists()
    limit(supervisor)
    wait_until(lambda: cluster.exit_record("4.1"))
    assert (cluster.exit_record("4.1") or {})["code"] == 3
    # Five lines `unheard N` of 10 bytes, and `heard` with its newline, 6 bytes.
    assert cluster.log["4.1"] == b"[detcloud] 56 bytes of the log were lost: File too large\n"


def test_agent_with_a_full_log_continues(agent: AgentProcess, cluster: FakeCluster) -> None:
    agent.errors = Path("/dev/full")
    cluster.assign("4.1", PRELUDE + LEAVE)
    process = agent.start()
    wait_until(lambda: cluster.exit_record("4.1"))
    cluster.fence()
    wait_until(lambda: cluster.epoch == 3)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PROCESS_SECONDS_MAX) == 0


def test_agent_logs_a_full_disk_once_and_the_recovery_once(
    agent: AgentProcess, cluster: FakeCluster
) -> None:
    cluster.assign("4.1", PRELUDE + 'report("ready")\n' + GO + LEAVE)
    # Standard error is a pipe, since the limit is for files.
    receiver, sender = os.pipe()
    agent.errors = Path(f"/proc/self/fd/{sender}")
    process = agent.start()
    os.close(sender)
    wait_until(lambda: cluster.lines("4.1"))
    limit(process.pid, 0)
    agent.let_go("4.1")
    os.set_blocking(receiver, False)
    with os.fdopen(receiver, "rb", buffering=0) as pipe:
        errors = b""

        def is_trouble_reported() -> bool:
            nonlocal errors
            errors += pipe.read(65536) or b""
            return b"4.1 could not be monitored" in errors

        wait_until(is_trouble_reported)
        # The agent tries again each second.
        time.sleep(2.5)
        limit(process.pid)
        wait_until(lambda: cluster.exit_record("4.1"))
        process.terminate()
        process.wait(PROCESS_SECONDS_MAX)
        errors += pipe.read() or b""
    lines = [line for line in errors.decode().splitlines() if "4.1" in line]
    assert len(lines) == 2, lines
    assert "4.1 could not be monitored, trying again: [Errno 27] File too large" in lines[0]
    assert lines[1].endswith("4.1 is monitored again")
