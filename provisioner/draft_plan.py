"""The draft of a pool's plan, which the steps of a pass complete one after the other. Pure."""

from dataclasses import dataclass, field, replace

from control_plane.fleet.records import InstanceRow, InstanceState, Offering, OfferingHealth
from provisioner import offerings
from provisioner.consolidation import SpareMarks
from provisioner.model import MINUTE_MS, FleetSnapshot, ObservedInstance


@dataclass
class DraftPlan:
    """The plan while it is made. `disconnected`: see ScalePlan."""

    snapshot: FleetSnapshot
    rows: dict[str, InstanceRow] = field(default_factory=dict)
    health: dict[str, OfferingHealth] = field(default_factory=dict)
    tokens: float = 0.0
    tokens_used: int = 0
    spare_ms: SpareMarks = field(default_factory=dict)
    disconnected: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

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
        return self.snapshot.observed[row.id]

    def rows_in(self, *states: InstanceState) -> list[InstanceRow]:
        return [row for row in self.rows.values() if row.state in states]

    def offering_health(self, offering: Offering) -> OfferingHealth:
        return self.health.get(offering.name, offerings.FRESH)

    def elapsed_ms(self, mark_ms: int | None) -> int:
        """The time since a mark was set, without times in which no pass ran."""
        now_ms = self.snapshot.now_ms
        return 0 if mark_ms is None else now_ms - max(mark_ms, self.snapshot.fleet.resumed_ms)

    def set_state(self, row: InstanceRow, state: InstanceState, reason: str) -> None:
        """Move an instance to another state; its first reason stays."""
        reason = row.reason or reason
        ended_ms = self.snapshot.now_ms if state is InstanceState.ENDED else None
        self.rows[row.id] = replace(row, state=state, reason=reason, ended_ms=ended_ms)
        self.reasons.append(f"instance {row.id} is {state.lower()}: {reason}")

    def disrupt(self, row: InstanceRow, state: InstanceState, reason: str) -> bool:
        """Drain or terminate a live instance if the token bucket allows it; return whether so."""
        if self.tokens < 1:
            return False
        self.tokens -= 1
        self.tokens_used += 1
        if self.observation(row).agent is None:
            self.disconnected.append(row.id)
        self.set_state(row, state, reason)
        return True
