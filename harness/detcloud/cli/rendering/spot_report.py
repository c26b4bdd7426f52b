"""The report of a simulation with a deadline: a table of spot policies, and a timeline for each."""

from __future__ import annotations

from collections.abc import Iterator

from detcloud.cli.rendering.quantities import duration_text
from detcloud.cli.rendering.table import Column, Item, render_table

LINE_CELLS = 72
MARKET = "spot machines"
OPTIMUM = "the optimum"


def render_spot_report(comparison: Item) -> str:
    """Return the report of the field `spot` of a simulation's result: a heading, a table of
    policies, and timelines, separated by empty lines.
    """
    return "\n".join((_heading(comparison), "", _table(comparison), "", *_timelines(comparison)))


def _heading(comparison: Item) -> str:
    """Return a line with the work, the deadline, the changeover time and the availability of spot
    machines.
    """
    work = duration_text(comparison["work_seconds"])
    deadline = duration_text(comparison["deadline_seconds"])
    changeover = duration_text(comparison["changeover_seconds"])
    return (
        f"{work} of work within {deadline},"
        f" {changeover} for a changeover, spot machines available"
        f" {100 * comparison['availability']:.0f} % of the time"
    )


def _table(comparison: Item) -> str:
    """Return a table with a row for each policy, and the optimum, of which only the cost is known,
    as the last row.
    """
    optimum = {"policy": OPTIMUM, "share": comparison["optimum_share"]}
    return render_table(COLUMNS, [*comparison["policies"], optimum], None)


def _timelines(comparison: Item) -> Iterator[str]:
    """Yield a timeline for the market and for each policy, from submission to deadline, and a
    legend.

    A timeline has at most LINE_CELLS characters, each for the middle of a part of the time. Blanks
    follow the end of the work.

    Args:
        comparison: the field `spot` of a simulation's result.
    """
    rows = [(MARKET, comparison["market"])]
    rows += [(policy["policy"], policy["course"]) for policy in comparison["policies"]]
    width = max(len(name) for name, _ in rows)
    ticks = len(comparison["market"])
    cells = min(LINE_CELLS, ticks)
    for name, course in rows:
        # The state in the middle of a cell's time; nothing once the work is done.
        line = "".join(course[at : at + 1] or " " for at in _cell_middles(ticks, cells))
        yield f"{name:<{width}}  {line}".rstrip()
    deadline = duration_text(comparison["deadline_seconds"])
    yield f"{'':<{width}}  s spot, D on-demand, . no machine; {deadline} in all"


def _cell_middles(ticks: int, cells: int) -> list[int]:
    """Return the tick in the middle of each cell of a timeline.

    Args:
        ticks: the number of ticks of the simulated time.
        cells: the number of cells, at most `ticks`.
    """
    return [(2 * cell + 1) * ticks // (2 * cells) for cell in range(cells)]


def _duration_column(title: str, name: str) -> Column:
    """Return a column with a duration of a policy, from a field in seconds. A missing field is
    None.
    """

    def duration(policy: Item) -> str | None:
        seconds = policy.get(name)
        return None if seconds is None else duration_text(seconds)

    return Column(title, duration)


COLUMNS = (
    Column("Policy", lambda policy: policy["policy"]),
    Column("Cost", lambda policy: f"{100 * policy['share']:.1f} %"),
    _duration_column("Done after", "finished_seconds"),
    _duration_column("On spot", "spot_seconds"),
    _duration_column("On-demand", "on_demand_seconds"),
    Column("Starts", lambda policy: policy.get("starts")),
)
