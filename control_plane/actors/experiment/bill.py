"""The bill of an experiment: its cost so far, its present rate, and how long it held slots.

Each trial's meter is kept in parts, which experiments without prices or deadlines do not have; the
head has their sums. Amounts and rates as in cost.py.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from control_plane.actors.cost import MS_PER_HOUR
from control_plane.actors.experiment.trial_summaries import SUMMARIES_PER_PART
from control_plane.actors.messages.experiment import TrialMetered
from control_plane.actors.step import StepContext


@dataclass(frozen=True, slots=True)
class Meter:
    """The latest TrialMetered of a trial."""

    epoch: int
    cost_micros: int
    rate_micros: int
    since_ms: int
    holds_slots: bool


@dataclass(frozen=True, slots=True)
class Meters:
    """Part `meters/K`: the meters of the trials numbered from K * SUMMARIES_PER_PART on."""

    trials: Mapping[int, Meter] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bill:
    """The sums of an experiment's meters. `cost_micros` leaves out running allocations, which cost
    `rate_micros` in all: that is `rate_micros` times the time, less `offset`, the sum of each rate
    times its beginning.

    `holding` trials have slots now; any trial had slots for `worked_ms` before `worked_since_ms`.
    `look_ms`: when the limit is checked next, 0 for never. `is_limited`: the limit was reached.
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
        """The cost up to now, running allocations included."""
        return self.cost_micros + max(0, self.rate_micros * now_ms - self.offset) // MS_PER_HOUR

    def worked_time_ms(self, now_ms: int) -> int:
        """How long any trial held slots up to now, in ms."""
        since_ms = now_ms - self.worked_since_ms if self.holding else 0
        return self.worked_ms + max(0, since_ms)


def apply_metered(bill: Bill, message: TrialMetered, context: StepContext) -> Bill:
    """The bill after a trial's meter changed; a repeated or late message changes nothing."""
    part = _part_name(message.number)
    known = context.part(part, Meters) or Meters()
    before = known.trials.get(message.number)
    if before is not None and not _is_later(before, message):
        return bill
    after = Meter(
        message.epoch,
        message.cost_micros,
        message.rate_micros,
        message.since_ms,
        message.holds_slots,
    )
    context.write_part(part, Meters({**known.trials, message.number: after}))
    was = before or Meter(0, 0, 0, 0, False)
    holding = bill.holding + after.holds_slots - was.holds_slots
    if bill.holding and not holding:
        bill = replace(bill, worked_ms=bill.worked_time_ms(context.now_ms))
    elif holding and not bill.holding:
        bill = replace(bill, worked_since_ms=context.now_ms)
    return replace(
        bill,
        cost_micros=bill.cost_micros + after.cost_micros - was.cost_micros,
        rate_micros=bill.rate_micros + after.rate_micros - was.rate_micros,
        offset=bill.offset + _offset(after) - _offset(was),
        holding=holding,
    )


def running_meters(trials: int, context: StepContext) -> Iterator[tuple[int, Meter]]:
    """The meters of trials that cost something now, each with the trial's number."""
    for index in range(-(-trials // SUMMARIES_PER_PART)):
        part = context.part(f"meters/{index}", Meters)
        for number, meter in (part.trials if part else {}).items():
            if meter.rate_micros:
                yield number, meter


def _is_later(known: Meter, message: TrialMetered) -> bool:
    """Whether a message is later than the meter: within an epoch a trial first holds its slots,
    then loses some of them, then holds none.
    """
    if message.epoch != known.epoch:
        return message.epoch > known.epoch
    if not (known.holds_slots and message.holds_slots):
        return known.holds_slots
    return message.rate_micros < known.rate_micros


def _offset(meter: Meter) -> int:
    return meter.rate_micros * meter.since_ms


def _part_name(number: int) -> str:
    return f"meters/{number // SUMMARIES_PER_PART}"
