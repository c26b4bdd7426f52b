"""What policies made of a deadline with spot machines: a table, and a line of time for each."""

from __future__ import annotations

from collections.abc import Iterator

from detcloud.cli.table import Column, Item, text_table

LINE_CELLS = 72
MARKET = "spot machines"
OPTIMUM = "the optimum"
_UNITS = ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min"), (1.0, "s"))


def spot_text(found: Item) -> str:
    """The answer of a simulation with a deadline, as text."""
    return "\n".join((_heading(found), "", _table(found), "", *_courses(found)))


def _heading(found: Item) -> str:
    return (
        f"{_span(found['work_seconds'])} of work within {_span(found['deadline_seconds'])},"
        f" {_span(found['changeover_seconds'])} for a changeover, spot machines there"
        f" {100 * found['availability']:.0f} % of the time"
    )


def _table(found: Item) -> str:
    optimum = {"policy": OPTIMUM, "share": found["optimum_share"]}
    return text_table(COLUMNS, [*found["policies"], optimum], None)


def _courses(found: Item) -> Iterator[str]:
    """Each line has the time from the submission to the deadline."""
    rows = [(MARKET, found["market"])]
    rows += [(policy["policy"], policy["course"]) for policy in found["policies"]]
    width = max(len(name) for name, _ in rows)
    ticks = len(found["market"])
    cells = min(LINE_CELLS, ticks)
    for name, course in rows:
        # In the middle of what a cell stands for; nothing once the work is done.
        line = "".join(course[at : at + 1] or " " for at in _middles(ticks, cells))
        yield f"{name:<{width}}  {line}".rstrip()
    yield f"{'':<{width}}  s spot, D on-demand, . none; {_span(found['deadline_seconds'])} in all"


def _middles(ticks: int, cells: int) -> list[int]:
    return [(2 * cell + 1) * ticks // (2 * cells) for cell in range(cells)]


def _span(seconds: float) -> str:
    for size, name in _UNITS:
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {name}"
    return f"{seconds:.3g} s"


def _span_column(title: str, name: str) -> Column:
    def shown(policy: Item) -> str | None:
        seconds = policy.get(name)
        return None if seconds is None else _span(seconds)

    return Column(title, shown)


COLUMNS = (
    Column("Policy", lambda policy: policy["policy"]),
    Column("Cost", lambda policy: f"{100 * policy['share']:.1f} %"),
    _span_column("Done after", "finished_seconds"),
    _span_column("On spot", "spot_seconds"),
    _span_column("On-demand", "on_demand_seconds"),
    Column("Starts", lambda policy: policy.get("starts")),
)
