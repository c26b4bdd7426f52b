"""Texts about forks: coloured diffs, expected time and cost, and families as tables."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

from detcloud.cli.rendering.conditions import CONDITION
from detcloud.cli.rendering.output import print_items, print_note, render_json
from detcloud.cli.rendering.quantities import dollars_text, duration_text
from detcloud.cli.rendering.table import Column, Item, field_column
from detcloud.cli.rendering.terminal import colourize
from detcloud.client.fork_records import Family, Pace
from detcloud.client.forks import ForkEstimate
from detcloud.shared.plurals import count_text

_LINE_COLOURS = {"+": "green", "-": "red", "@": "cyan"}
_SINGULAR_UNITS = {"batches": "batch", "records": "record", "epochs": "epoch", "steps": "step"}


def colour_diff(diff: str) -> str:
    """Return a unified diff with added lines in green and removed lines in red."""
    lines = []
    for line in diff.splitlines(keepends=True):
        text = line.rstrip("\n")
        lines.append(colourize(text, _LINE_COLOURS.get(text[:1])) + line[len(text) :])
    return "".join(lines)


def estimate_lines(estimate: ForkEstimate) -> Iterator[str]:
    """Yield the lines of an estimate: the training, the time and cost, the pace, and each note."""
    if estimate.trials is not None:
        trials = count_text(estimate.trials, "trial")
        parts = [f"{trials}, {estimate.units:g} {estimate.unit} in all"]
        if estimate.seconds is not None:
            slots = count_text(estimate.slots or 0, "slot")
            parts.append(f"about {duration_text(estimate.seconds)} on {slots}")
        if estimate.cost is not None:
            parts.append(f"about {dollars_text(estimate.cost)}")
        yield f"expected: {'; '.join(parts)}"
    if estimate.pace is not None and estimate.pace["seconds_per_unit"]:
        yield _pace_text(estimate.pace)
    for note in estimate.notes:
        yield f"note: {note}"


def print_family(family: Family, arguments: Namespace) -> None:
    """Print the family of an experiment as a table, after an empty line. Forks are indented below
    the original. Nothing is printed for an experiment without a family.

    If the family is cut, print a note to stderr.
    """
    members = family["members"]
    if len(members) < 2 and members[0]["forked_from"] is None:
        return
    depths: dict[int | None, int] = {}
    items: list[Item] = []
    for member in members:
        depth = depths.get(member["forked_from"], -1) + 1
        depths[member["id"]] = depth
        items.append({**member, "depth": depth, "is_own": member["id"] == family["experiment_id"]})
    print("\nFamily")
    print_items(_FAMILY_COLUMNS, items, arguments)
    if family["is_cut"]:
        print_note(
            "the family has more members; "
            f"`detcloud list --filter forked-from:{family['experiment_id']}` lists all forks"
        )


def _pace_text(pace: Pace) -> str:
    """Return the sentence about the measured pace of a unit of training."""
    unit = _SINGULAR_UNITS.get(pace["unit"], pace["unit"])
    cost = pace["cost_per_unit"]
    price = "" if cost is None else f" and ${cost:.3g}"
    seconds = duration_text(pace["seconds_per_unit"] or 0.0)
    return f"measured in experiment {pace['experiment_id']}: {seconds}{price} per {unit}"


def _tree_text(item: Item) -> str:
    """Return the id of a member, indented by the depth. The described experiment has a star."""
    lead = "" if not item["depth"] else f"{'  ' * (item['depth'] - 1)}└ "
    return f"{lead}{item['id']}{' *' if item['is_own'] else ''}"


def _changes_text(member: Item) -> str | None:
    """Return the changes of a member, for example `hyperparameters.lr: 0.1 to 0.01`. Return None
    without an original in the family.
    """
    differences = member["differences"]
    if differences is None:
        return None if member["forked_from"] is None else f"fork of {member['forked_from']}"
    texts = [
        f"{one['path'].removeprefix('hyperparameters.')}: "
        f"{_value_text(one['before'])} to {_value_text(one['after'])}"
        for one in differences
    ]
    if member["differences_left_out"]:
        texts.append(f"{member['differences_left_out']} more")
    if member["has_other_code"]:
        texts.append("other code")
    return ", ".join(texts) or "nothing"


def _value_text(value: object) -> str:
    """Return a value as text, `unset` for None, and other values than texts as JSON."""
    if value is None:
        return "unset"
    return value if isinstance(value, str) else render_json(value, indent=None)


_FAMILY_COLUMNS = (
    Column("Experiment", _tree_text),
    field_column("Name", "name"),
    CONDITION,
    field_column("Metric", "metric", drop_rank=2),
    field_column("Best", "best_metric"),
    Column("Changes", _changes_text, drop_rank=1),
)
