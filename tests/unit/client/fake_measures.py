"""Metrics and log lines of the fake cluster: every trial's loss is 1 / steps, of 100 and 200."""

from typing import TYPE_CHECKING

from tests.unit.client.fake_refusal import Item

if TYPE_CHECKING:
    from tests.unit.client.fake_cluster import FakeCluster

LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
POINTS = [[100, 0.01], [200, 0.005]]


def metric_names(trial: Item) -> Item:
    summary = {"count": 2, "last_steps": 200, "last": 0.005, "minimum": 0.005, "maximum": 0.01}
    pairs = [("training", "loss"), ("training", "accuracy"), ("validation", "loss")]
    # (0.01 + 0.005) / 2 = 0.0075
    items = [{"group": group, "name": name, **summary, "mean": 0.0075} for group, name in pairs]
    return {"items": items}


def metric_series(trial: Item, query_lists: dict[str, list[str]]) -> Item:
    [group] = query_lists["group"]
    wanted = query_lists.get("name")
    points_max = int(query_lists.get("points", ["500"])[0])
    known = {item["name"] for item in metric_names(trial)["items"] if item["group"] == group}
    names = [name for name in sorted(known) if wanted is None or name in wanted]
    return {
        "series": [
            {"group": group, "name": name, "points": POINTS[:points_max], "total": 2}
            for name in names
        ]
    }


def best_trials_series(cluster: "FakeCluster", number: int, query: Item) -> Item:
    trials = [trial for trial in cluster.trials if trial["experiment_id"] == number]
    return {
        "group": query.get("group", "validation"),
        "name": query.get("name", "validation_loss"),
        "series": [
            {"trial_id": trial["id"], "points": POINTS, "total": 2}
            for trial in trials[: int(query.get("trials", 10))]
        ],
    }


def log_lines_page(known: list[Item], query: Item, has_ended: bool) -> Item:
    """Answer at most two lines per page, so a longer log needs a cursor."""
    after = int(query.get("after", -1))
    least = LEVELS.index(query["level"]) if "level" in query else 0
    lines = [
        line
        for line in known
        if line["offset"] > after
        and line["time_ms"] >= int(query.get("since_ms", 0))
        and line["time_ms"] < int(query.get("until_ms", 1 << 60))
        and query.get("rank") in (None, str(line["rank"]))
        and ("level" not in query or LEVELS.index(line["level"] or "INFO") >= least)
        and query.get("search", "").lower() in line["text"].lower()
    ]
    cursor = str(lines[1]["offset"]) if len(lines) > 2 else None
    return {"items": lines[:2], "next_cursor": cursor, "complete": has_ended and cursor is None}
