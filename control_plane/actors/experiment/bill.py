"""The bill of an experiment: the cost so far, the present rate, and how long trials held slots.

Each trial has a meter. Meters are stored in parts, which experiments without prices, deadlines and
measured use do not have. The head contains the sums of the meters. Amounts and rates are as in
cost.py.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from control_plane.actors.cost import MS_PER_HOUR
from control_plane.actors.experiment.trial_summaries import SUMMARIES_PER_PART
from control_plane.actors.messages.experiment import TrialMetered
from control_plane.actors.step import StepContext
from control_plane.actors.use import Use, change_sum
from control_plane.rows.stored_fields import keep_stored_name


@dataclass(frozen=True, slots=True)
class Meter:
    """The latest TrialMetered of a trial, without the trial's number."""

    epoch: int
    """The epoch of the trial's latest allocation."""
    cost_micros: int
    """The cost of slots that the trial no longer holds, in micro-dollars."""
    rate_micros: int
    """The rate of the slots that the trial holds, in micro-dollars per hour."""
    since_ms: int
    """The time from which the rate counts, in epoch ms."""
    holds_slots: bool
    """Whether the allocation still holds slots."""
    use: Use | None = None
    """The measured use of slots that the trial no longer holds. None: nothing was measured."""


@dataclass(frozen=True, slots=True)
class Meters:
    """The part `meters/K`: the meters of the trials from number K * SUMMARIES_PER_PART on."""

    trials: Mapping[int, Meter] = field(default_factory=dict)
    """The meters by the trial's number."""


@dataclass(frozen=True, slots=True)
class Bill:
    """The sums of an experiment's meters.

    At the time `now`, held slots have cost `(rate_micros * now - offset) / MS_PER_HOUR`.
    """

    cost_micros: int = 0
    """The cost of released slots, in micro-dollars."""
    rate_micros: int = 0
    """The rate of all held slots, in micro-dollars per hour."""
    offset: int = 0
    """The sum over all meters of the rate times the start of the rate in epoch ms."""
    holding: int = 0
    """The number of trials that hold slots."""
    worked_ms: int = 0
    """How long at least one trial held slots, in ms, up to `worked_since_ms`."""
    worked_since_ms: int = 0
    """The time since which at least one trial holds slots, in epoch ms, if `holding` is not 0."""
    next_check_ms: int = field(default=0, metadata=keep_stored_name("look_ms"))
    """The time of the next check of the cost limit, in epoch ms. 0: no check is due."""
    is_limited: bool = False
    """Whether the cost limit was reached."""
    use: Use | None = None
    """The measured use of released slots. None: nothing was measured."""

    def spent_micros(self, now_ms: int) -> int:
        """Return the cost up to `now_ms` in micro-dollars: of released slots, and of held slots so
        far.
        """
        return self.cost_micros + max(0, self.rate_micros * now_ms - self.offset) // MS_PER_HOUR

    def worked_time_ms(self, now_ms: int) -> int:
        """Return how long some trial has held slots up to now, in ms.

        Overlapping times of several trials count once.
        """
        since_ms = now_ms - self.worked_since_ms if self.holding else 0
        return self.worked_ms + max(0, since_ms)


def apply_metered(bill: Bill, message: TrialMetered, context: StepContext) -> Bill:
    """Write a trial's changed meter into a part `meters/K`, and return the bill with the new sums.

    A repeated or late message writes nothing and returns the same bill object.
    """
    part = _part_name(message.number)
    meters = context.part(part, Meters) or Meters()
    before = meters.trials.get(message.number)
    if before is not None and not _is_later(before, message):
        return bill
    after = Meter(
        message.epoch,
        message.cost_micros,
        message.rate_micros,
        message.since_ms,
        message.holds_slots,
        message.use,
    )
    context.write_part(part, Meters({**meters.trials, message.number: after}))
    old = before or Meter(0, 0, 0, 0, False)
    holding = bill.holding + after.holds_slots - old.holds_slots
    if bill.holding and not holding:
        bill = replace(bill, worked_ms=bill.worked_time_ms(context.now_ms))
    elif holding and not bill.holding:
        bill = replace(bill, worked_since_ms=context.now_ms)
    return replace(
        bill,
        cost_micros=bill.cost_micros + after.cost_micros - old.cost_micros,
        rate_micros=bill.rate_micros + after.rate_micros - old.rate_micros,
        offset=bill.offset + _offset(after) - _offset(old),
        holding=holding,
        use=change_sum(bill.use, old.use, after.use),
    )


def running_meters(trials: int, context: StepContext) -> Iterator[tuple[int, Meter]]:
    """Iterate over the meters with a rate above 0, each with the trial's number.

    Args:
        trials: the number of trials that the experiment has created.
    """
    for index in range(-(-trials // SUMMARIES_PER_PART)):
        part = context.part(f"meters/{index}", Meters)
        for number, meter in (part.trials if part else {}).items():
            if meter.rate_micros:
                yield number, meter


def _is_later(meter: Meter, message: TrialMetered) -> bool:
    """Return whether the message is later than the meter.

    Within an epoch, a trial first holds all slots, then loses some of them, then holds none. So the
    rate decreases.
    """
    if message.epoch != meter.epoch:
        return message.epoch > meter.epoch
    if not (meter.holds_slots and message.holds_slots):
        return meter.holds_slots
    return message.rate_micros < meter.rate_micros


def _offset(meter: Meter) -> int:
    """Return the meter's rate times the start of the rate in epoch ms, as in `Bill.offset`."""
    return meter.rate_micros * meter.since_ms


def _part_name(number: int) -> str:
    """Return the name of the experiment's part, a stored row, with the meter of a trial."""
    return f"meters/{number // SUMMARIES_PER_PART}"
