"""Marks of pools with used-up budgets.

An instance costs $3.60 an hour: 1,000 micro-dollars a second and $0.06 until the next check.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import date

import pytest

from control_plane.actors.messages.pool import PoolConfigured, PoolRemoved, PoolSettings
from control_plane.engine.engine import Engine
from control_plane.fleet.bills import bills_partition, day_start_ms, encode_bill
from control_plane.fleet.budget import CHECK_PERIOD_MS, check_budgets
from control_plane.fleet.records import InstanceRow, InstanceState, Market, Offering
from control_plane.fleet.rows import encode_row, instance_key
from control_plane.state.memory import MemoryTable
from control_plane.state.table import Expect, Key, Put
from tests.engine_timing import UNHURRIED

POOL = "gpus"
LAST_OF_NOVEMBER, FIRST_OF_DECEMBER = date(2026, 11, 30), date(2026, 12, 1)
RATE = 1_000  # micro-dollars a second
MINUTE_MS = 60_000
DOLLAR = 1_000_000


@dataclass
class BudgetHarness:
    """An engine with a clock that begins at noon of the last day of November."""

    now_ms: int = day_start_ms(LAST_OF_NOVEMBER) + 12 * 60 * MINUTE_MS
    engine: Engine = field(init=False)

    def __post_init__(self) -> None:
        self.engine = Engine(MemoryTable(), lambda: self.now_ms, UNHURRIED)

    def configure(self, budget_micros: int | None) -> None:
        settings = replace(self.settings(), budget_micros=budget_micros)
        self.engine.execute_command(f"pool#{POOL}", PoolConfigured(POOL, settings))

    def rent(self, price_per_hour: float = 3.6) -> None:
        """Store an instance that is launched now."""
        offering = Offering("small", "small", "a", Market.SPOT, 1, price_per_hour)
        row = InstanceRow("i-1", POOL, offering, InstanceState.RUNNING, self.now_ms, "n-1")
        self.engine.table.commit([Put(instance_key(row), 1, encode_row(row), Expect.ABSENT)])

    def bill(self, day: date, micros: int) -> None:
        """Store the cost of the instances that ended on a day."""
        key = Key(bills_partition(POOL), day.isoformat()[:7])
        self.engine.table.commit([Put(key, 1, encode_bill({day: micros}), Expect.ABSENT)])

    def settings(self) -> PoolSettings:
        return self.engine.read_part(f"pool#{POOL}", "settings") or PoolSettings()

    def look(self) -> list[str]:
        return check_budgets(self.engine, [POOL])

    def looks(self, times_ms: Iterable[int]) -> list[tuple[int, bool]]:
        """Check the budget at times from now. Return (time, over_budget) after each change."""
        changes, began_ms = [], self.now_ms
        for time_ms in times_ms:
            self.now_ms = began_ms + time_ms
            if self.look():
                changes.append((time_ms, self.settings().over_budget))
        return changes


@pytest.fixture
def harness() -> BudgetHarness:
    harness = BudgetHarness()
    harness.configure(None)
    return harness


def test_pool_is_marked_once_when_the_budget_is_used_up(harness: BudgetHarness) -> None:
    harness.configure(300 * RATE)
    harness.rent()
    # After 4 minutes, since the budget would be used up before the next check.
    looks = harness.looks(minute * CHECK_PERIOD_MS for minute in range(10))
    assert looks == [(4 * MINUTE_MS, True)]


def test_pool_is_not_marked_while_the_budget_suffices(harness: BudgetHarness) -> None:
    harness.configure(300 * RATE)
    harness.rent()
    assert harness.looks([4 * MINUTE_MS - 1]) == []
    assert harness.looks([1]) == [(1, True)]


def test_mark_follows_a_raised_lowered_or_removed_budget(harness: BudgetHarness) -> None:
    harness.bill(LAST_OF_NOVEMBER, DOLLAR)
    changes = []
    for budget in (DOLLAR + 1, DOLLAR, DOLLAR + 1, DOLLAR - 1, None, 1):
        harness.configure(budget)
        changes.append((harness.look(), harness.settings().over_budget))
        assert harness.look() == []
    over, open_ = ([POOL], True), ([POOL], False)
    assert changes == [([], False), over, open_, over, open_, over]


def test_change_of_a_different_setting_keeps_the_mark(harness: BudgetHarness) -> None:
    harness.bill(LAST_OF_NOVEMBER, DOLLAR)
    harness.configure(DOLLAR)
    assert harness.look() == [POOL]
    changed = replace(harness.settings(), description="spent")
    harness.engine.execute_command(f"pool#{POOL}", PoolConfigured(POOL, changed))
    assert harness.settings().over_budget
    assert harness.look() == []


def test_month_begins_with_the_full_budget(harness: BudgetHarness) -> None:
    harness.now_ms = day_start_ms(FIRST_OF_DECEMBER) - 5 * MINUTE_MS
    harness.bill(LAST_OF_NOVEMBER, DOLLAR)
    harness.configure(DOLLAR)
    # The instance runs over the turn of the month. Its November costs do not count in December.
    harness.rent()
    looks = harness.looks([0, 5 * MINUTE_MS - 1, 5 * MINUTE_MS, 6 * MINUTE_MS])
    assert looks == [(0, True), (5 * MINUTE_MS, False)]
    # $0.94 at $0.06 a minute, the last minute before the next check included.
    harness.now_ms = day_start_ms(FIRST_OF_DECEMBER)
    looks = harness.looks(minute * MINUTE_MS for minute in range(20))
    assert looks == [(16 * MINUTE_MS, True)]


@pytest.mark.parametrize("budget", [None, 1])
def test_free_instances_use_no_budget(harness: BudgetHarness, budget: int | None) -> None:
    harness.configure(budget)
    harness.rent(price_per_hour=0.0)
    assert harness.looks([0, 1_000 * MINUTE_MS]) == []


def test_pool_without_a_budget_has_no_limit(harness: BudgetHarness) -> None:
    harness.bill(LAST_OF_NOVEMBER, 1_000_000 * DOLLAR)
    assert harness.look() == []


def test_check_returns_only_the_changed_pools(harness: BudgetHarness) -> None:
    harness.engine.execute_command("pool#default", PoolConfigured("default"))
    harness.engine.execute_command(
        "pool#gone", PoolConfigured("gone", PoolSettings(budget_micros=1))
    )
    harness.engine.execute_command("pool#gone", PoolRemoved())
    harness.bill(LAST_OF_NOVEMBER, DOLLAR)
    harness.configure(DOLLAR)
    assert check_budgets(harness.engine, ["default", "gone", POOL, "never"]) == [POOL]
