"""The check of the pools' monthly budgets and quiet hours, which the tick runs at least once a
minute.

A pool is over its budget if, at the present hourly cost, its budget is used up by the next check.
Such a pool starts no work and gets no instances until the next month, or until the budget is
raised.
"""

from collections.abc import Sequence

from control_plane.actors import addresses
from control_plane.actors.cost import cost_of
from control_plane.actors.messages.pool import BudgetChecked, PoolSettings
from control_plane.engine.engine import Engine
from control_plane.fleet.bills import hourly_cost_micros, month_cost_micros
from control_plane.fleet.quiet_hours import check_quiet_hours

CHECK_PERIOD_MS = 60_000


def check_budgets(engine: Engine, pools: Sequence[str]) -> list[str]:
    """Post BudgetChecked to each pool that went over or under budget; return the pools' names.

    The pools get a QuietHoursChecked, too, when quiet hours begin or end (`check_quiet_hours`).
    """
    changed = []
    for pool in pools:
        settings = engine.read_part(addresses.pool(pool), "settings") or PoolSettings()
        assert isinstance(settings, PoolSettings)
        check_quiet_hours(engine, pool, settings)
        over = _is_over(engine, pool, settings.budget_micros)
        if over != settings.over_budget:
            sender = f"budget#{pool}"
            engine.post_message(
                addresses.pool(pool), BudgetChecked(over, raises_events=True), sender=sender
            )
            changed.append(pool)
    return changed


def _is_over(engine: Engine, pool: str, budget_micros: int | None) -> bool:
    """Whether the month's cost will reach the budget by the next check; False without a budget."""
    if budget_micros is None:
        return False
    table = engine.table
    spent = month_cost_micros(table, pool, engine.clock())
    return spent + cost_of(hourly_cost_micros(table, pool), CHECK_PERIOD_MS) >= budget_micros
