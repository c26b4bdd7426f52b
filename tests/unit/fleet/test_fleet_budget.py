"""Pools hear once that their budgets are used up, and once that they are not any more.

An instance costs $3.60 an hour, which is 1,000 micro-dollars a second and $0.06 until the next
look.
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
    """A table and a clock, which stands at the last noon of November."""

    now_ms: int = day_start_ms(LAST_OF_NOVEMBER) + 12 * 60 * MINUTE_MS
    engine: Engine = field(init=False)

    def __post_init__(self) -> None:
        self.engine = Engine(MemoryTable(), lambda: self.now_ms, UNHURRIED)

    def configure(self, budget_micros: int | None) -> None:
        settings = replace(self.settings(), budget_micros=budget_micros)
        self.engine.execute_command(f"pool#{POOL}", PoolConfigured(POOL, settings))

    def rent(self, price_per_hour: float = 3.6) -> None:
        """An instance that is launched now."""
        offering = Offering("small", "small", "a", Market.SPOT, 1, price_per_hour)
        row = InstanceRow("i-1", POOL, offering, InstanceState.RUNNING, self.now_ms, "n-1")
        self.engine.table.commit([Put(instance_key(row), 1, encode_row(row), Expect.ABSENT)])

    def bill(self, day: date, micros: int) -> None:
        """Store what instances cost that ended on a day."""
        key = Key(bills_partition(POOL), day.isoformat()[:7])
        self.engine.table.commit([Put(key, 1, encode_bill({day: micros}), Expect.ABSENT)])

    def settings(self) -> PoolSettings:
        return self.engine.read_part(f"pool#{POOL}", "settings") or PoolSettings()

    def look(self) -> list[str]:
        return check_budgets(self.engine, [POOL])

    def looks(self, times_ms: Iterable[int]) -> list[tuple[int, bool]]:
        """When it was told anything, of looks at these times from now, and what."""
        found, began_ms = [], self.now_ms
        for time_ms in times_ms:
            self.now_ms = began_ms + time_ms
            if self.look():
                found.append((time_ms, self.settings().over_budget))
        return found


@pytest.fixture
def harness() -> BudgetHarness:
    harness = BudgetHarness()
    harness.configure(None)
    return harness


def test_a_pool_hears_once_that_its_budget_is_used_up(harness: BudgetHarness) -> None:
    harness.configure(300 * RATE)
    harness.rent()
    # After 4 minutes, since it would be used up before the next look.
    looks = harness.looks(minute * CHECK_PERIOD_MS for minute in range(10))
    assert looks == [(4 * MINUTE_MS, True)]


def test_a_pool_hears_of_nothing_while_there_is_enough(harness: BudgetHarness) -> None:
    harness.configure(300 * RATE)
    harness.rent()
    assert harness.looks([4 * MINUTE_MS - 1]) == []
    assert harness.looks([1]) == [(1, True)]


def test_a_pool_hears_of_a_budget_that_is_raised_lowered_and_lifted(harness: BudgetHarness) -> None:
    harness.bill(LAST_OF_NOVEMBER, DOLLAR)
    told = []
    for budget in (DOLLAR + 1, DOLLAR, DOLLAR + 1, DOLLAR - 1, None, 1):
        harness.configure(budget)
        told.append((harness.look(), harness.settings().over_budget))
        assert harness.look() == []
    over, open_ = ([POOL], True), ([POOL], False)
    assert told == [([], False), over, open_, over, open_, over]


def test_a_change_of_anything_else_keeps_what_the_pool_has_heard(harness: BudgetHarness) -> None:
    harness.bill(LAST_OF_NOVEMBER, DOLLAR)
    harness.configure(DOLLAR)
    assert harness.look() == [POOL]
    changed = replace(harness.settings(), description="spent")
    harness.engine.execute_command(f"pool#{POOL}", PoolConfigured(POOL, changed))
    assert harness.settings().over_budget
    assert harness.look() == []


def test_a_month_begins_with_all_of_the_budget(harness: BudgetHarness) -> None:
    harness.now_ms = day_start_ms(FIRST_OF_DECEMBER) - 5 * MINUTE_MS
    harness.bill(LAST_OF_NOVEMBER, DOLLAR)
    harness.configure(DOLLAR)
    # It runs over the turn of the month: what it cost in November is of no concern in December.
    harness.rent()
    looks = harness.looks([0, 5 * MINUTE_MS - 1, 5 * MINUTE_MS, 6 * MINUTE_MS])
    assert looks == [(0, True), (5 * MINUTE_MS, False)]
    # $0.94 at $0.06 a minute, of which the last is before the next look.
    harness.now_ms = day_start_ms(FIRST_OF_DECEMBER)
    looks = harness.looks(minute * MINUTE_MS for minute in range(20))
    assert looks == [(16 * MINUTE_MS, True)]


@pytest.mark.parametrize("budget", [None, 1])
def test_what_costs_nothing_uses_nothing_up(harness: BudgetHarness, budget: int | None) -> None:
    harness.configure(budget)
    harness.rent(price_per_hour=0.0)
    assert harness.looks([0, 1_000 * MINUTE_MS]) == []


def test_a_pool_without_a_budget_may_cost_anything(harness: BudgetHarness) -> None:
    harness.bill(LAST_OF_NOVEMBER, 1_000_000 * DOLLAR)
    assert harness.look() == []


def test_only_those_that_hear_anything_are_named(harness: BudgetHarness) -> None:
    harness.engine.execute_command("pool#default", PoolConfigured("default"))
    harness.engine.execute_command(
        "pool#gone", PoolConfigured("gone", PoolSettings(budget_micros=1))
    )
    harness.engine.execute_command("pool#gone", PoolRemoved())
    harness.bill(LAST_OF_NOVEMBER, DOLLAR)
    harness.configure(DOLLAR)
    assert check_budgets(harness.engine, ["default", "gone", POOL, "never"]) == [POOL]
