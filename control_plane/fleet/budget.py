"""The budgets of pools: whether they are used up, checked each minute or more often.

A pool is over its budget if it will be by the next check, at what its instances cost now: then it
starts nothing and gets no instances until the next month, or until the budget is raised.
"""

from collections.abc import Sequence

from control_plane.actors import addresses
from control_plane.actors.cost import cost_of
from control_plane.actors.messages.pool import BudgetChecked, PoolSettings
from control_plane.engine.engine import Engine
from control_plane.fleet.bills import hourly_cost_micros, month_cost_micros

CHECK_PERIOD_MS = 60_000


def check_budgets(engine: Engine, pools: Sequence[str]) -> list[str]:
    """Tell pools that went over or under their budgets; return the names of those pools."""
    told = []
    for pool in pools:
        settings = engine.read_part(addresses.pool(pool), "settings") or PoolSettings()
        assert isinstance(settings, PoolSettings)
        over = _is_over(engine, pool, settings.budget_micros)
        if over != settings.over_budget:
            sender = f"budget#{pool}"
            engine.post_message(addresses.pool(pool), BudgetChecked(over), sender=sender)
            told.append(pool)
    return told


def _is_over(engine: Engine, pool: str, budget_micros: int | None) -> bool:
    if budget_micros is None:
        return False
    table = engine.table
    spent = month_cost_micros(table, pool, engine.clock())
    return spent + cost_of(hourly_cost_micros(table, pool), CHECK_PERIOD_MS) >= budget_micros
