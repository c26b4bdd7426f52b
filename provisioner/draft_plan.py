"""The mutable draft of a pool's plan, which the steps of the scale decider complete. Pure."""

from dataclasses import dataclass, field, replace

from control_plane.fleet.records import InstanceRow, InstanceState, Offering, OfferingHealth
from provisioner import offerings
from provisioner.consolidation import SpareMarks
from provisioner.model import MINUTE_MS, FleetSnapshot, ObservedInstance


@dataclass
class DraftPlan:
    """A pool's plan under construction. Each step changes the fields; nothing is stored."""

    snapshot: FleetSnapshot
    rows: dict[str, InstanceRow] = field(default_factory=dict)
    """The instance rows after the plan, by id; the observations fill it."""
    health: dict[str, OfferingHealth] = field(default_factory=dict)
    """The health of offerings by name; initially the fleet's, without times in the future."""
    tokens: float = 0.0
    """The number of drains and terminations that may still start now.

    The number grows by `terminations_max` in a minute, up to `terminations_max`.
    """
    tokens_used: int = 0
    """The number of drains and terminations that this plan starts."""
    spare_ms: SpareMarks = field(default_factory=dict)
    """The start times of spare instances after the plan; empty until `disrupt_instances`."""
    disconnected: list[str] = field(default_factory=list)
    """The ids of instances that start to drain or end while their agents are not connected."""
    reasons: list[str] = field(default_factory=list)
    """The decisions so far, as texts for users."""

    def __post_init__(self) -> None:
        fleet, cap = self.snapshot.fleet, self.snapshot.settings.terminations_max
        now_ms = self.snapshot.now_ms
        self.health = {
            name: offerings.health_without_future(offering_health, now_ms)
            for name, offering_health in fleet.health.items()
        }
        elapsed_ms = max(0, self.snapshot.now_ms - fleet.tokens_ms)
        self.tokens = min(float(cap), fleet.tokens + cap * elapsed_ms / MINUTE_MS)

    def observation(self, row: InstanceRow) -> ObservedInstance:
        """Return the snapshot's observation of an instance, also of an unlisted instance.

        The plan's changes do not show in the observation. Raises KeyError for an instance that the
        snapshot lacks.
        """
        return self.snapshot.observed[row.id]

    def rows_in(self, *states: InstanceState) -> list[InstanceRow]:
        """Return the draft's present rows in any of the given states, as a new list."""
        return [row for row in self.rows.values() if row.state in states]

    def offering_health(self, offering: Offering) -> OfferingHealth:
        """Return the draft's health of an offering, or FRESH without a record; store nothing."""
        return self.health.get(offering.name, offerings.FRESH)

    def elapsed_ms(self, mark_ms: int | None) -> int:
        """Return the time in ms from a mark to the pass, or 0 without a mark.

        A mark is the time at which a condition began. The time counts from the end of the last gap
        in which no pass ran, if the mark is older. A mark in the future gives a negative time.
        """
        now_ms = self.snapshot.now_ms
        return 0 if mark_ms is None else now_ms - max(mark_ms, self.snapshot.fleet.resumed_ms)

    def set_state(self, row: InstanceRow, state: InstanceState, reason: str) -> None:
        """Replace the instance's row by `row` in another state, and append a reason for users.

        Keep a reason that `row` already has, in place of `reason`. Set `ended_ms` to now for ENDED,
        and to None for any other state. The change does not count against the limit of drains,
        `tokens`. Nothing is stored outside the draft.
        """
        reason = row.reason or reason
        ended_ms = self.snapshot.now_ms if state is InstanceState.ENDED else None
        self.rows[row.id] = replace(row, state=state, reason=reason, ended_ms=ended_ms)
        self.reasons.append(f"instance {row.id} is {state.lower()}: {reason}")

    def disrupt(self, row: InstanceRow, state: InstanceState, reason: str) -> bool:
        """Drain or terminate an instance if `tokens` allows; return whether this was done.

        With less than one token, change nothing and return False. Otherwise return True, and update
        the draft:

        - Subtract 1 from `tokens`, and add 1 to `tokens_used`.
        - Replace the instance's row by `row` in the new state. The row's reason is kept if it has
          one, else `reason` is set.
        - Append the row's kept or new reason, with the state, to `reasons`.
        - If the instance's agent is not connected, append the instance's id to `disconnected`.

        `state` is DRAINING or TERMINATING. Raises KeyError for an instance that the snapshot lacks.
        """
        if self.tokens < 1:
            return False
        is_connected = self.observation(row).agent is not None
        self.tokens -= 1
        self.tokens_used += 1
        if not is_connected:
            self.disconnected.append(row.id)
        self.set_state(row, state, reason)
        return True
