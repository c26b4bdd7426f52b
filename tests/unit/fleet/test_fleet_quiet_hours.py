"""The announcements of quiet hours to the pools, with the check of budgets."""

from dataclasses import dataclass, field, replace

from bench.metered_table import MeteredTable
from control_plane.actors.messages.pool import PoolConfigured, PoolSettings
from control_plane.engine.engine import Engine
from control_plane.fleet.budget import check_budgets
from control_plane.scheduling.quiet_hours import QuietHours
from control_plane.state.memory import MemoryTable
from tests.engine_timing import UNHURRIED

POOL = "gpus"
ADDRESS = f"pool#{POOL}"
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
NIGHT = QuietHours((0, 1, 2, 3, 4, 5, 6), 22 * 60, 6 * 60, "UTC")


@dataclass
class QuietHarness:
    """An engine with a clock that begins at noon of a day."""

    now_ms: int = 20_000 * DAY_MS + 12 * HOUR_MS
    units: list[float] = field(default_factory=list)
    engine: Engine = field(init=False)

    def __post_init__(self) -> None:
        table = MeteredTable(
            MemoryTable(), lambda writes, bill: self.units.append(bill.units), self.units.append
        )
        self.engine = Engine(table, lambda: self.now_ms, UNHURRIED)

    def configure(self, *rules: QuietHours) -> None:
        settings = replace(self.settings(), quiet_hours=rules)
        self.engine.execute_command(ADDRESS, PoolConfigured(POOL, settings))

    def settings(self) -> PoolSettings:
        return self.engine.read_part(ADDRESS, "settings") or PoolSettings()

    def check(self, hours: float = 0) -> bool:
        """Let time pass, check, and return whether the pool's state has changed."""
        self.now_ms += int(hours * HOUR_MS)
        before = self.settings()
        check_budgets(self.engine, [POOL])
        return self.settings() != before

    def cost_of_check(self) -> float:
        self.units.clear()
        check_budgets(self.engine, [POOL])
        return sum(self.units)


def test_pool_is_told_of_the_begin_and_the_end_once() -> None:
    harness = QuietHarness()
    harness.configure(NIGHT)
    # The first check computes the periods.
    assert harness.check()
    assert [harness.check(1) for _ in range(9)] == [False] * 9
    assert harness.check(1)
    assert harness.settings().is_quiet
    assert [harness.check(1) for _ in range(7)] == [False] * 7
    assert harness.check(1)
    assert not harness.settings().is_quiet
    assert harness.settings().quiet_ended_ms == harness.now_ms
    assert not harness.check()


def test_late_check_tells_of_the_present_period() -> None:
    harness = QuietHarness()
    harness.configure(NIGHT)
    harness.check()
    assert harness.check(30 * 24 + 11)
    settings = harness.settings()
    assert settings.is_quiet
    assert settings.quiet_periods[0].from_ms == harness.now_ms - HOUR_MS


def test_new_rules_replace_the_periods() -> None:
    harness = QuietHarness()
    harness.configure(NIGHT)
    harness.check()
    # The use case of users computes the periods itself, and other writers leave the former ones.
    harness.configure(replace(NIGHT, begin=11 * 60))
    harness.now_ms = harness.settings().quiet_periods[0].until_ms
    assert harness.check()
    assert harness.settings().quiet_periods[0].from_ms % DAY_MS == 11 * HOUR_MS


def test_check_reads_no_more_with_quiet_hours() -> None:
    plain, quiet = QuietHarness(), QuietHarness()
    plain.configure()
    quiet.configure(NIGHT)
    quiet.check()
    assert quiet.cost_of_check() == plain.cost_of_check()
