"""Sums of samples, the watch over low use, and the records of an allocation."""

from __future__ import annotations

import pytest

from detcloud.agent.allocation.agent_report import AgentReport
from detcloud.agent.allocation.directory import AllocationDirectory
from detcloud.agent.usage.low_use_watch import LowUse, LowUseWatch
from detcloud.agent.usage.use_monitor import REPORT_MS, UseMonitor
from detcloud.agent.usage.use_sums import SlotSample, UseSums

SECOND_MS = 1_000
MINUTE_MS = 60_000
HOUR_MS = 3_600_000
IDLE, BUSY = SlotSample(1, 0.5), SlotSample(90, 0.5)
SPEC = {"slots": [0, 2], "low_use": {"percent": 5, "time_ms": HOUR_MS}}


def test_samples_are_weighted_with_time() -> None:
    sums = UseSums().add(SlotSample(50, 0.25), 10_000).add(SlotSample(4.9, 0.5), 30_000)
    assert sums == UseSums(40_000, 5_000 + 1_470, 30_000, 2_500 + 15_000)


@pytest.mark.parametrize("sample", [SlotSample(250, 7), SlotSample(-3, -1)])
def test_impossible_samples_are_cut(sample: SlotSample) -> None:
    sums = UseSums().add(sample, 1_000)
    assert all(0 <= value <= 1_000 for value in sums.fields().values())


def test_sums_survive_their_record() -> None:
    sums = UseSums(4, 3, 2, 1)
    assert UseSums.of_record(sums.fields()) == sums
    for wrong in ({}, {**sums.fields(), "low_ms": -1}, {**sums.fields(), "busy_ms": "3"}):
        assert UseSums.of_record(wrong) == UseSums()


class Machine:
    """A slot whose use the test sets, and the watch over the slot."""

    def __init__(self, percent: int = 5) -> None:
        self.watch = LowUseWatch(percent, HOUR_MS)
        self.sums = UseSums()
        self.now_ms = 0

    def use(self, percent: float, minutes: int) -> list[LowUse]:
        """Sample every 10 s at this use. Return the changes."""
        changes = []
        for _ in range(minutes * 6):
            self.now_ms += 10 * SECOND_MS
            self.sums = self.sums.add(SlotSample(percent, 0), 10 * SECOND_MS)
            if change := self.watch.check(self.sums, self.now_ms):
                changes.append(change)
        return changes


def test_hour_of_little_use_is_low_once() -> None:
    machine = Machine()
    assert machine.use(2, 60) == []
    assert machine.use(2, 240) == [LowUse(True, 2.0, HOUR_MS)]


def test_use_at_the_limit_is_enough() -> None:
    assert Machine().use(5, 300) == []


def test_work_before_the_hour_does_not_count() -> None:
    machine = Machine()
    assert machine.use(100, 300) == []
    [low] = machine.use(0, 90)
    assert low.is_low
    assert 4 < low.percent < 5


def test_short_bursts_raise_the_mean() -> None:
    machine = Machine()
    for _ in range(20):
        assert machine.use(0, 14) == []
        assert machine.use(100, 1) == []


def test_low_use_ends_only_well_above_the_limit() -> None:
    machine = Machine()
    machine.use(2, 61)
    assert machine.use(6, 300) == []
    [end] = machine.use(50, 60)
    assert not end.is_low


def test_missing_samples_are_no_low_use() -> None:
    watch = LowUseWatch(5, HOUR_MS)
    for minute in range(300):
        assert watch.check(UseSums(), minute * MINUTE_MS) is None


@pytest.mark.parametrize(
    "fields", [None, 5, {}, {"percent": 0, "time_ms": 1}, {"percent": 5, "time_ms": "1h"}]
)
def test_specification_without_a_valid_policy_has_no_watch(fields: object) -> None:
    assert LowUseWatch.of_spec({"low_use": fields}) is None


def records(directory: AllocationDirectory, kind: str) -> list[dict[str, object]]:
    found = AgentReport(directory.report).records()
    return [record for record in found if record["kind"] == kind]


class TestMonitor:
    def test_sums_are_recorded_in_periods_and_at_the_end(
        self, directory: AllocationDirectory
    ) -> None:
        monitor, report = UseMonitor.of_spec(SPEC, []), AgentReport(directory.report)
        assert monitor.slots == (0, 2)
        monitor.report_to(report, 0)
        monitor.add([BUSY, IDLE], 10_000, 10_000)
        monitor.report_to(report, REPORT_MS - 1)
        assert records(directory, "use") == []
        monitor.report_to(report, REPORT_MS)
        monitor.report_to(report, 2 * REPORT_MS)
        [use] = records(directory, "use")
        assert (use["measured_ms"], use["busy_ms"], use["low_ms"]) == (20_000, 9_100, 10_000)
        monitor.add([BUSY, IDLE], 10_000, 20_000)
        monitor.finish(report)
        assert [x["measured_ms"] for x in records(directory, "use")] == [20_000, 40_000]

    def test_next_agent_continues_with_the_recorded_sums(
        self, directory: AllocationDirectory
    ) -> None:
        first, report = UseMonitor.of_spec(SPEC, []), AgentReport(directory.report)
        first.add([BUSY, BUSY], 10_000, 10_000)
        first.finish(report)
        second = UseMonitor.of_spec(SPEC, AgentReport(directory.report).records())
        second.finish(report)
        second.add([BUSY, BUSY], 5_000, 15_000)
        second.finish(report)
        assert [x["measured_ms"] for x in records(directory, "use")] == [20_000, 30_000]

    def test_low_use_is_recorded_after_the_sums(self, directory: AllocationDirectory) -> None:
        monitor, report = UseMonitor.of_spec(SPEC, []), AgentReport(directory.report)
        for minute in range(62):
            monitor.add([IDLE, IDLE], MINUTE_MS, minute * MINUTE_MS)
        monitor.report_to(report, 0)
        kinds = [record["kind"] for record in AgentReport(directory.report).records()]
        assert kinds == ["use", "low_use"]
        [low] = records(directory, "low_use")
        assert (low["is_low"], low["percent"], low["time_ms"]) == (True, 1.0, HOUR_MS)

    def test_sums_wait_for_the_next_call_and_low_use_does_not(
        self, directory: AllocationDirectory
    ) -> None:
        report = AgentReport(directory.report)
        report.append("use", measured_ms=1)
        assert (report.urgent_size, report.size > 0) == (0, True)
        report.append("low_use", is_low=True)
        assert report.urgent_size == report.size
