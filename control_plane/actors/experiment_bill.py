"""What an experiment has cost, what it costs now, and how long it has had machines.

Each trial's meter is kept, in parts that experiments without prices or deadlines do not have; the
head has their sums. Amounts and rates as in cost.py.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from control_plane.actors.cost import MS_PER_HOUR
from control_plane.actors.experiment_messages import TrialMetered
from control_plane.actors.experiment_summaries import SUMMARIES_PER_PART
from control_plane.actors.step import Turn


@dataclass(frozen=True, slots=True)
class Meter:
    """As in TrialMetered."""

    epoch: int
    cost_micros: int
    rate_micros: int
    since_ms: int
    holds_slots: bool


@dataclass(frozen=True, slots=True)
class Meters:
    """Part `meters/K`: those of the trials numbered from K * SUMMARIES_PER_PART on."""

    trials: Mapping[int, Meter] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bill:
    """The sums. `cost_micros` leaves out what allocations cost that run at `rate_micros` in all:
    that is `rate_micros` times the time, less `offset`, the sum of each rate times its beginning.

    `holding` trials have slots now, and some had them for `worked_ms` before `worked_since_ms`.
    `look_ms`: when it is to be looked at next, 0 for never. `is_limited`: it has come to the limit.
    """

    cost_micros: int = 0
    rate_micros: int = 0
    offset: int = 0
    holding: int = 0
    worked_ms: int = 0
    worked_since_ms: int = 0
    look_ms: int = 0
    is_limited: bool = False

    def spent_micros(self, now_ms: int) -> int:
        """Everything up to now, running allocations included."""
        return self.cost_micros + max(0, self.rate_micros * now_ms - self.offset) // MS_PER_HOUR

    def worked_until_ms(self, now_ms: int) -> int:
        """For how long any trial had slots."""
        since_ms = now_ms - self.worked_since_ms if self.holding else 0
        return self.worked_ms + max(0, since_ms)


def billed(bill: Bill, message: TrialMetered, turn: Turn) -> Bill:
    """The sums after a trial's word; a repeat or a late one changes nothing."""
    part = _part_name(message.number)
    known = turn.part(part, Meters) or Meters()
    before = known.trials.get(message.number)
    if before is not None and not _is_news(before, message):
        return bill
    after = Meter(
        message.epoch,
        message.cost_micros,
        message.rate_micros,
        message.since_ms,
        message.holds_slots,
    )
    turn.write_part(part, Meters({**known.trials, message.number: after}))
    was = before or Meter(0, 0, 0, 0, False)
    holding = bill.holding + after.holds_slots - was.holds_slots
    if bill.holding and not holding:
        bill = replace(bill, worked_ms=bill.worked_until_ms(turn.now_ms))
    elif holding and not bill.holding:
        bill = replace(bill, worked_since_ms=turn.now_ms)
    return replace(
        bill,
        cost_micros=bill.cost_micros + after.cost_micros - was.cost_micros,
        rate_micros=bill.rate_micros + after.rate_micros - was.rate_micros,
        offset=bill.offset + _offset(after) - _offset(was),
        holding=holding,
    )


def running(trials: int, turn: Turn) -> Iterator[tuple[int, Meter]]:
    """The trials, by number, that cost something now."""
    for index in range(-(-trials // SUMMARIES_PER_PART)):
        part = turn.part(f"meters/{index}", Meters)
        for number, meter in (part.trials if part else {}).items():
            if meter.rate_micros:
                yield number, meter


def _is_news(known: Meter, message: TrialMetered) -> bool:
    """Within an epoch a trial first has its slots, then loses some of them, then has none."""
    if message.epoch != known.epoch:
        return message.epoch > known.epoch
    if not (known.holds_slots and message.holds_slots):
        return known.holds_slots
    return message.rate_micros < known.rate_micros


def _offset(meter: Meter) -> int:
    return meter.rate_micros * meter.since_ms


def _part_name(number: int) -> str:
    return f"meters/{number // SUMMARIES_PER_PART}"
