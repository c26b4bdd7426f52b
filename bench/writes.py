"""Write units like DynamoDB's bill, and bytes, per commit and per decision, for experiments of
growing size.

A decision is a folded message. The costs include all commits, commits of the agent's session
included.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from statistics import mean

from bench.figures import FLAT_MAX, Row, Scale, at_most, number, progress, row_without_target
from bench.metered_table import Bill, MeteredTable
from bench.trials import Load, run
from control_plane.engine.journal import JOURNAL, decode_journal_row
from control_plane.state.table import Put, StateTable, Write

UNITS_MAX = 20


@dataclass
class Account:
    """The bills of a run. `decisions`: number per commit, 0 for commits that only move data."""

    units: list[int] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    decisions: list[int] = field(default_factory=list)

    def take(self, writes: Sequence[Write], bill: Bill) -> None:
        """Add the bill of a commit."""
        self.units.append(bill.units)
        self.bytes.append(bill.bytes)
        self.decisions.append(sum(map(_decisions, writes)))

    def per_decision(self) -> list[float]:
        """Return the units of each commit with decisions, divided by the number of decisions."""
        both = zip(self.units, self.decisions, strict=True)
        return [units / decisions for units, decisions in both if decisions]

    def units_per_decision(self) -> float:
        """Return all units of the run divided by all decisions."""
        return sum(self.units) / sum(self.decisions)


def writes(scale: Scale) -> Iterator[Row]:
    """Yield the costs of the largest experiment, and the growth from the smallest."""
    accounts = [measure_writes(Load(trials)) for trials in scale.sizes]
    largest = accounts[-1]
    sizes = " / ".join(f"{trials:,}" for trials in scale.sizes)
    per_decision = [account.units_per_decision() for account in accounts]
    yield at_most(
        f"write units per decision, {scale.sizes[-1]:,} trials",
        per_decision[-1],
        UNITS_MAX,
        "units",
        beside=spread(largest.per_decision()),
    )
    yield growth("write units per decision", per_decision, sizes)
    yield row_without_target(
        f"write units per commit, {scale.sizes[-1]:,} trials",
        mean(largest.units),
        "units",
        beside=spread(largest.units),
    )
    per_trial = sum(largest.units) / scale.sizes[-1]
    yield row_without_target(
        f"write units per trial, {scale.sizes[-1]:,} trials", per_trial, "units"
    )
    bytes_per_commit = [mean(account.bytes) for account in accounts]
    yield growth("bytes written per commit", bytes_per_commit, sizes)


def measure_writes(load: Load) -> Account:
    """The bills of a run."""
    account = Account()

    def wrap(table: StateTable) -> StateTable:
        return MeteredTable(table, account.take)

    with progress(f"write units of {load.trials:,} trials, {load.searcher}"):
        run(load, wrap)
    return account


def _decisions(write: Write) -> int:
    """Return the number of folded messages in a journal row, or 0 for other rows."""
    if not isinstance(write, Put) or not write.key.sort.startswith(JOURNAL):
        return 0
    folded = decode_journal_row(write.body)
    mailed = sum(len(mail["messages"]) for mail in folded.get("in", []))
    return mailed + len(folded.get("command", []))


def growth(what: str, values: Sequence[float], sizes: str) -> Row:
    """A row of the last value over the first."""
    factor = values[-1] / values[0]
    measured = " / ".join(map(number, values))
    return at_most(f"{what}, growth", factor, FLAT_MAX, "x", beside=f"{measured} at {sizes} trials")


def spread(values: Sequence[float]) -> str:
    """Mean, 99th percentile and largest in words."""
    ordered = sorted(values)
    p99 = ordered[ceil(0.99 * len(ordered)) - 1]
    average, largest = number(mean(ordered)), number(ordered[-1])
    return f"of a commit: mean {average}, p99 {number(p99)}, max {largest}"
