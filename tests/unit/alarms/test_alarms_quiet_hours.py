"""The alarm `queue-wait` in and after the quiet hours of a pool."""

from control_plane.actors.job_row import JobRow, encode_job, job_sort_key, jobs_partition
from control_plane.actors.messages.pool import (
    PoolConfigured,
    PoolSettings,
    QuietHoursChecked,
    SlotsRequested,
)
from control_plane.alarms.observations import Observations
from control_plane.config.alarms import Alarms
from control_plane.engine.engine import Engine
from control_plane.scheduling.quiet_hours import QuietPeriod
from control_plane.state.memory import MemoryTable
from control_plane.state.table import Expect, Key, Put
from tests.engine_timing import UNHURRIED

HOUR_MS = 3_600_000
START_MS = 1_000 * HOUR_MS
PERIOD = QuietPeriod(START_MS, START_MS + 8 * HOUR_MS, urgent_priority=5)


class WaitingPool:
    """A pool without agents, with an ordinary job and by request an urgent job."""

    def __init__(self, *periods: QuietPeriod) -> None:
        self.now_ms = START_MS
        self.engine = Engine(MemoryTable(), lambda: self.now_ms, UNHURRIED)
        settings = PoolSettings(quiet_periods=periods, is_quiet=bool(periods))
        self.engine.execute_command("pool#a", PoolConfigured("a", settings))
        self.submit(1, None)

    def submit(self, number: int, priority: int | None) -> None:
        key = Key(jobs_partition("a"), job_sort_key(number))
        body = encode_job(JobRow(START_MS, priority=priority))
        self.engine.table.commit((Put(key, 1, body, Expect.ABSENT),))
        ticket = f"{START_MS:014d}.{START_MS:014d}.{number:012d}"
        message = SlotsRequested(number, 1, 1, ticket, number)
        self.engine.post_message("pool#a", message, sender=f"trial#{number}")

    def findings(self, hours: int) -> list[str]:
        """Return the texts of the alarm at an hour after the start."""
        self.now_ms = START_MS + hours * HOUR_MS
        conditions = Observations(self.engine, Alarms()).conditions(None)
        return [finding.text for finding in conditions["queue-wait"]()]


def test_wait_in_quiet_hours_raises_no_alarm() -> None:
    assert WaitingPool().findings(3)[0].startswith("job 1 has waited for slots for 3 h")
    assert WaitingPool(PERIOD).findings(3) == []


def test_wait_counts_from_the_end_of_the_quiet_hours() -> None:
    pool = WaitingPool(PERIOD)
    assert pool.findings(9) == []
    assert pool.findings(10)[0].startswith("job 1 has waited for slots for 2 h")
    # The announced end counts as well.
    pool.engine.post_message("pool#a", QuietHoursChecked((), ()), sender="quiet#a")
    assert pool.findings(9) == []
    assert pool.findings(10)[0].startswith("job 1 has waited for slots for 2 h")


def test_urgent_job_that_waits_raises_the_alarm() -> None:
    pool = WaitingPool(PERIOD)
    pool.submit(2, 5)
    assert pool.findings(3)[0].startswith("job 2 has waited for slots for 3 h")
