"""The events of a pool that webhooks announce."""

from control_plane.actors import addresses
from control_plane.actors.event_routes import EventCondition, EventType, read_routes
from control_plane.actors.events import Event, raise_event
from control_plane.actors.step import StepContext


def raise_budget_event(pool: str, over_budget: bool, context: StepContext) -> None:
    """Raise an event for a pool that went over or under the budget, as the alarm `budget`."""
    routes = read_routes(context)
    if not routes:
        return
    state = "raised" if over_budget else "cleared"
    event = Event(
        EventType.ALARM,
        addresses.pool(pool),
        context.now_ms,
        f"alarm budget in pool {pool} is {state}",
        "the budget is used up: no work starts" if over_budget else "the budget is not used up",
        EventCondition(state=state),
        {"alarm": {"name": "budget", "pool": pool, "state": state, "value": ""}},
    )
    raise_event(routes, event, context)
