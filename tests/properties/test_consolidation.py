"""Consolidation of a pool without new work.

The pool loses unneeded instances, ends no working instance, launches no instance, and becomes
stable.
"""

from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.fleet.records import FleetRow, InstanceRow, InstanceState, Offering
from provisioner.model import (
    ConnectedAgent,
    Demand,
    FleetSnapshot,
    InstanceStatus,
    JobDemand,
    ObservedInstance,
    ProvisionerSettings,
    ScalePlan,
)
from provisioner.scale_decider import plan_scaling
from tests.unit.provisioner.fleet_table import BIG, SMALL, SPOT

MINUTE_MS = 60_000
START_MS = 1_000_000_000
IDLE_MINUTES = 20
# All that may go at once has drained after an idle period, and is gone a minute later.
REST_MINUTES = IDLE_MINUTES + 2


@dataclass
class Fleet:
    """A pool under a clock, with a pass each minute.

    `work` has the slots of each allocation by instance. An ended allocation is followed by an equal
    allocation, placed by best fit.
    """

    settings: ProvisionerSettings
    rows: dict[str, InstanceRow]
    work: dict[str, list[int]]
    now_ms: int = START_MS
    fleet: FleetRow = field(default_factory=lambda: FleetRow("p"))
    waiting: list[int] = field(default_factory=list)

    def running(self) -> list[str]:
        """Return the names of the instances that accept work."""
        return sorted(row.id for row in self.rows.values() if row.state is InstanceState.RUNNING)

    def run_pass(self) -> ScalePlan:
        """Advance the clock by a minute, and run a pass."""
        self.now_ms += MINUTE_MS
        jobs = tuple(JobDemand({slots: 1}) for slots in self.waiting)
        plan = plan_scaling(
            FleetSnapshot(
                settings=self.settings,
                offerings=(SMALL, SPOT, BIG),
                demand=Demand(jobs),
                fleet=self.fleet,
                rows=tuple(self.rows.values()),
                observed={name: self._observe(row) for name, row in self.rows.items()},
                pending=(),
                now_ms=self.now_ms,
                random=lambda: 0.5,
            )
        )
        self.fleet = replace(plan.fleet, passed_ms=self.now_ms)
        assert not plan.launches, self
        for row in plan.changed_rows:
            self._apply_change(row)
        return plan

    def renew_work(self, name: str) -> None:
        """End the first allocation of an instance, and begin an equal allocation."""
        if self.work[name]:
            self.waiting.append(self.work[name].pop(0))
        self.place_waiting()

    def place_waiting(self) -> None:
        """Place waiting allocations on the instances with the fewest free slots."""
        for slots in list(self.waiting):
            free = {
                name: self._free_slots(row)
                for name, row in self.rows.items()
                if row.state is InstanceState.RUNNING and self._free_slots(row) >= slots
            }
            if free:
                self.work[min(free, key=lambda name: (free[name], name))].append(slots)
                self.waiting.remove(slots)

    def _apply_change(self, row: InstanceRow) -> None:
        if row.state is not InstanceState.RUNNING:
            assert not self.work[row.id], f"{row} has work: {self.work}"
        self.rows[row.id] = row
        if row.state is InstanceState.TERMINATING:
            del self.rows[row.id], self.work[row.id]

    def _free_slots(self, row: InstanceRow) -> int:
        return row.offering.slots - sum(self.work[row.id])

    def _observe(self, row: InstanceRow) -> ObservedInstance:
        work = tuple(self.work[row.id])
        takes_work = row.state is InstanceState.RUNNING
        free_slots = self._free_slots(row)
        agent = ConnectedAgent(not work, takes_work, work, free_slots, not takes_work)
        return ObservedInstance(InstanceStatus.RUNNING, agent)


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    rows: dict[str, InstanceRow] = {}
    work: dict[str, list[int]] = {}
    for number in range(draw(st.integers(1, 6))):
        offering = draw(st.sampled_from([SMALL, SMALL, SPOT, BIG]))
        name = f"i{number}"
        rows[name] = _connected_row(name, offering)
        work[name] = []
        for slots in draw(st.lists(st.integers(1, 4), max_size=3)):
            if sum(work[name]) + slots <= offering.slots:
                work[name].append(slots)
    settings_drawn = ProvisionerSettings(
        "fake",
        min_instances=draw(st.integers(0, len(rows))),
        max_instances=6,
        idle_ms_max=IDLE_MINUTES * MINUTE_MS,
        on_demand_base=draw(st.sampled_from([0.0, 0.5, 1.0])),
    )
    return Fleet(settings_drawn, rows, work)


@settings(max_examples=25, deadline=None)
@given(fleet=fleets(), data=st.data())
def test_pool_shrinks_to_the_needed_size_and_becomes_stable(
    fleet: Fleet, data: st.DataObject
) -> None:
    for _ in range(2 * REST_MINUTES):
        if fleet.rows:
            fleet.renew_work(data.draw(st.sampled_from(sorted(fleet.rows))))
        # The pool's work still fits after the removal of instances.
        assert not fleet.waiting, fleet
        fleet.run_pass()
        assert len(fleet.running()) >= fleet.settings.min_instances
    for _ in range(REST_MINUTES):
        plan = fleet.run_pass()
    assert not plan.changed_rows
    idle = [name for name in fleet.running() if not fleet.work[name]]
    assert not idle or len(fleet.running()) == fleet.settings.min_instances


def test_scattered_short_work_keeps_a_single_instance() -> None:
    # Each of six instances works every sixth minute, so that no instance is idle for long.
    rows = {name: _connected_row(name, SMALL) for name in "abcdef"}
    work: dict[str, list[int]] = {name: [] for name in rows}
    fleet = Fleet(ProvisionerSettings("fake", max_instances=6), rows, work)
    for minute in range(REST_MINUTES):
        names = fleet.running()
        busy = names[minute % len(names)]
        fleet.work[busy] = [1]
        fleet.run_pass()
        fleet.work[busy] = []
    assert len(fleet.running()) == 1


def _connected_row(name: str, offering: Offering) -> InstanceRow:
    return InstanceRow(
        name, "p", offering, InstanceState.RUNNING, START_MS, "intent", connected_ms=START_MS
    )
