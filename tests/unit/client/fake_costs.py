"""Costs and use of the fake cluster in two days of November."""

from tests.unit.client.fake_refusal import Item, Refusal

# By unit, then name, title, allocations and instances in dollars.
SPENT: dict[str, list[tuple[str, str, float, float | None]]] = {
    "experiment": [("2", "digits", 12.4, None), ("1", "", 0.0712, None)],
    "trial": [("5", "experiment 2", 12.4, None), ("1", "experiment 1", 0.0712, None)],
    "user": [("ada", "", 12.4, None), ("unknown", "", 0.0712, None)],
    "pool": [("cloud", "", 12.4712, 20.0), ("spot", "", 0.0, 0.25)],
    "day": [("2026-11-29", "", 12.4, 20.0), ("2026-11-30", "", 0.0712, 0.25)],
}
ALLOCATIONS, INSTANCES = 12.4712, 20.25
FIRST, TODAY = "2026-11-01", "2026-11-30"


def cost_report(query: Item) -> Item:
    since, until = query.get("since", FIRST), query.get("until", TODAY)
    if since > until:
        text = f"must be at most 365 days before until ({until}) and today, not {since}"
        detail = {"path": "since", "message": text}
        raise Refusal(422, "invalid", f"since: {text}", [detail])
    return {
        "by": query["by"],
        "since": since,
        "until": until,
        "items": [_item(*spent) for spent in SPENT[query["by"]]],
        "total": _item("total", "", ALLOCATIONS, INSTANCES),
    }


def _item(name: str, title: str, cost: float, instances: float | None) -> Item:
    return {
        "name": name,
        "title": title,
        "cost": cost,
        "instance_cost": instances,
        "idle_cost": None if instances is None else max(0.0, instances - cost),
    }


# Besides the units of costs: the projects, workspaces, and the days of pools.
USED: dict[str, list[tuple[str, str, float, float | None]]] = {
    **SPENT,
    "project": [("vision", "ada", 12.4, None), ("Uncategorized", "Uncategorized", 0.0712, None)],
    "workspace": [("ada", "", 12.4, None), ("Uncategorized", "", 0.0712, None)],
    "pool-day": [("2026-11-29", "cloud", 12.4, 20.0), ("2026-11-30", "spot", 0.0712, 0.25)],
}


def usage_report(query: Item) -> Item:
    """Return a report in which a quarter of each allocation was low use."""
    report = cost_report({**query, "by": "user"})
    items = [_usage_item(*used) for used in USED[query["by"]]]
    total = _usage_item("total", "", ALLOCATIONS, INSTANCES)
    return {**report, "by": query["by"], "items": items, "total": total}


def _usage_item(name: str, title: str, cost: float, instances: float | None) -> Item:
    item = _item(name, title, cost, instances)
    is_measured = cost > 1
    return {
        **item,
        "slot_hours": cost * 2,
        "measured_hours": cost if is_measured else 0.0,
        "use_percent": 41.5 if is_measured else None,
        "memory_percent": 60.0 if is_measured else None,
        "low_cost": cost / 4,
        "wasted": cost / 4 + (item["idle_cost"] or 0),
    }
