"""Whether pools have used up their budgets, looked at each minute or more often.

A pool is over its budget once it would be before the next look, at what its instances cost now:
then it starts nothing and gets no instances until the next month, or until the budget is raised.
"""

from collections.abc import Sequence

from control_plane.actors import addresses
from control_plane.actors.cost import cost_of
from control_plane.actors.pool_messages import BudgetChecked, PoolSettings
from control_plane.dispatch.engine import Engine
from control_plane.fleet.bills import month_micros, rate_micros

LOOK_MS = 60_000


def check_budgets(engine: Engine, pools: Sequence[str]) -> list[str]:
    """Tells each pool whether it is over its budget where it does not know; returns those told."""
    told = []
    for pool in pools:
        settings = engine.part(addresses.pool(pool), "settings") or PoolSettings()
        assert isinstance(settings, PoolSettings)
        over = _is_over(engine, pool, settings.budget_micros)
        if over != settings.over_budget:
            sender = f"budget#{pool}"
            engine.post(addresses.pool(pool), BudgetChecked(over), sender=sender)
            told.append(pool)
    return told


def _is_over(engine: Engine, pool: str, budget_micros: int | None) -> bool:
    if budget_micros is None:
        return False
    table = engine.table
    spent = month_micros(table, pool, engine.clock())
    return spent + cost_of(rate_micros(table, pool), LOOK_MS) >= budget_micros
