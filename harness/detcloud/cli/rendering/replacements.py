"""Texts and tables of replacements: the time in which trials do not train after a loss of slots."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

from detcloud.cli.rendering.output import print_items, print_note
from detcloud.cli.rendering.quantities import duration_text
from detcloud.cli.rendering.table import Column, Item, field_column, time_text
from detcloud.shared.plurals import count_text

CAUSE_TEXTS = {
    "notice": "after a notice",
    "loss": "after a loss",
    "preemption": "after a preemption",
}
PHASE_NAMES = {"first_step": "first step"}


def _seconds_column(title: str, name: str) -> Column:
    """Return a column with the duration of a field in ms, for CSV as the number."""
    return Column(
        title,
        lambda item: duration_text(item[name] / 1000),
        exact=lambda item: item[name],
    )


PHASE_SUM_COLUMNS = (
    Column("Phase", lambda item: phase_name(item["phase"])),
    field_column("Count", "count"),
    _seconds_column("Median", "median_ms"),
    _seconds_column("90 % within", "p90_ms"),
)
"""The columns of the phases of a cause."""


def phase_name(phase: str) -> str:
    """Return the name of a phase for users. Unknown phases of newer clusters keep their name."""
    return PHASE_NAMES.get(phase, phase)


def replacements_text(trial: Item) -> str:
    """Return two lines for each recent replacement of a trial: the duration, and the phases.

    Return "" without replacements.
    """
    return "\n".join(
        line
        for replacement in trial.get("replacements") or ()
        for line in _replacement_lines(replacement)
    )


def print_replacement_sums(sums: Item, arguments: Namespace, days: int | None = None) -> None:
    """Print a table for each cause of a pool's or an experiment's replacements.

    The lines of a table are the phases. If the sums are cut, print a note to stderr.

    Args:
        sums: the answer of the cluster.
        arguments: the arguments with the form of the output.
        days: the number of days that the sums cover. None for the whole life of an experiment.
    """
    for cause in sums["causes"]:
        print(f"\n{sum_title({**cause}, days)}")
        print_items(PHASE_SUM_COLUMNS, [{**phase} for phase in cause["phases"]], arguments)
    if sums["is_cut"]:
        since = time_text(sums["since_ms"])
        print_note(f"there were more; the sums cover only the replacements since {since}")


def sum_title(sums: Item, days: int | None) -> str:
    """Return the title of the table of a cause, for example `3 replacements after a notice, ended
    in the last 30 days`. Without days, the title is `3 replacements after a notice`.
    """
    cause = CAUSE_TEXTS.get(sums["cause"], sums["cause"])
    period = "" if days is None else f", ended in the last {days} days"
    title = f"{count_text(sums['count'], 'replacement')} {cause}{period}"
    if sums["unmeasured"]:
        title += f"; {sums['unmeasured']} more without a report of the first step"
    return title


def _replacement_lines(replacement: Item) -> Iterator[str]:
    """Yield a line about a replacement, and a line of the phases."""
    runs = f"run {replacement['from_epoch']} to {replacement['epoch']}"
    if replacement["epoch"] == replacement["from_epoch"]:
        runs = f"run {replacement['epoch']}"
    duration = duration_text(replacement["duration_ms"] / 1000)
    if replacement["ended_ms"] is None:
        duration = f"{duration} so far"
    elif not replacement["has_first_step"]:
        duration = f"{duration} up to the first report of training"
    if replacement["attempts"]:
        duration += f", {count_text(replacement['attempts'], 'run')} without a step in between"
    yield (
        f"{time_text(replacement['begun_ms'])} {runs}, {duration}, "
        f"{CAUSE_TEXTS.get(replacement['cause'], replacement['cause'])}: {replacement['reason']}"
    )
    yield "  " + ", ".join(
        f"{phase_name(phase['phase'])} {duration_text(phase['duration_ms'] / 1000)}"
        for phase in replacement["phases"]
    )
    # Clusters of older versions do not send the field.
    if failure := replacement.get("early_pull_failure"):
        yield f"  the image was not pulled early: {failure}"
