from __future__ import annotations

from pathlib import Path

from detcloud.agent.allocation.allocation import Allocation
from detcloud.agent.allocation.directory import AllocationDirectory
from detcloud.agent.processes.runtime import ProcessRuntime
from detcloud.shared.notices import Notice


def test_older_directives_are_ignored_and_a_notice_stays(directory: AllocationDirectory) -> None:
    allocation = Allocation(directory, ProcessRuntime())
    allocation.apply_directives({"revision": 5, "length": 100})
    allocation.apply_directives({"revision": 4, "length": 50})
    allocation.notify(Notice(2000, "spot"))
    allocation.apply_directives({"revision": 6, "length": 200, "preempt": None})
    assert directory.read_directives() == {
        "revision": 6,
        "length": 200,
        "preempt": {"deadline_ms": 2000, "reason": "spot"},
    }


def test_a_flood_of_lines_is_slowed_down(directory: AllocationDirectory) -> None:
    allocation = Allocation(directory, ProcessRuntime())
    allocation.charge_lines(4000)
    assert not allocation.is_throttled
    # 9,000 lines at once: at most 5,000 and what a moment refills are allowed.
    allocation.charge_lines(5000)
    assert allocation.is_throttled


def test_an_agent_of_a_gang_sends_whole_lines_until_the_end(tmp_path: Path) -> None:
    directory = AllocationDirectory(tmp_path / "allocations", "4.1")
    directory.create()
    directory.write_spec({"nodes": 2})
    allocation = Allocation(directory, ProcessRuntime(None))
    directory.log.write_text("one\ntwo")
    # Seven bytes, of which the last three are no line yet; where there is more, pieces are full.
    assert allocation.read_log(100) == (0, "one\n", False)
    assert allocation.read_log(2) == (0, "on", True)
    allocation.record_failure("lost", "gone")
    assert allocation.read_log(100) == (0, "one\ntwo", False)
