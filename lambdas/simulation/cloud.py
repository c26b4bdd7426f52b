"""The cloud of a simulated cluster: the provider's own fake, whose machines boot agents that live
in the simulation.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from control_plane.fleet.records import IntentRow, Market, Offering
from lambdas.simulation.fault_rates import NO_FAULTS
from lambdas.simulation.fault_state import FaultState
from lambdas.simulation.state_checker import InvariantBroken
from provisioner.clouds.fake.provider import FakeCloud, FakeMachine, FakeRules
from provisioner.clouds.provider import CloudError, CloudInstance, TokenReused

ZONES = ("a", "b")
REPLAY_MS = (100, 900_000)
NO_FAULT_RULES = FakeRules(
    visible_ms=(0, 30_000),
    running_ms=(5_000, 40_000),
    boot_ms=(10_000, 60_000),
    ending_ms=(2_000, 40_000),
    stale_ms=20_000,
)


class SimulatedCloud(FakeCloud):
    """A fake cloud with the simulation's faults. `on_machine_change` is called with each machine
    that comes and each that begins to end, `on_terminate` with each whose end is asked for;
    `call_later` calls a function after so many ms. `lost_zones` launch nothing.
    """

    lost_zones: set[str]

    on_machine_change: Callable[[FakeMachine], None]
    call_later: Callable[[int, Callable[[], None]], None]
    on_terminate: Callable[[str], None]
    faults: FaultState

    def launch(self, request: IntentRow) -> tuple[CloudInstance, ...]:
        """Launch, as described in CloudProvider. A request may arrive again, much later, or in
        another zone.
        """
        faults = self.faults
        if faults.draw_fault("replayed_tokens", faults.rates.replayed_tokens):
            delay_ms = faults.random.randint(*REPLAY_MS)
            self.call_later(delay_ms, lambda: self._replay(request))
        try:
            return self._launch(request)
        except TokenReused as error:
            raise InvariantBroken(f"{request}: {error}") from None

    def terminate(self, ids: Sequence[str]) -> None:
        """Terminate, as described in CloudProvider."""
        for name in ids:
            self.on_terminate(name)
        super().terminate(ids)

    def shut_down(self, name: str) -> None:
        """Shut a machine down, as described in FakeCloud."""
        super().shut_down(name)
        self.on_machine_change(self.machines[name])

    def _launch(self, request: IntentRow) -> tuple[CloudInstance, ...]:
        known = set(self.machines)
        if self._is_sold_out(request.offering):
            self.capacity[request.offering.name] = 0
        else:
            self.capacity.pop(request.offering.name, None)
        try:
            return super().launch(request)
        finally:
            for name in list(self.machines):
                if name not in known:
                    self.on_machine_change(self.machines[name])

    def _replay(self, request: IntentRow) -> None:
        """Launch with the same bytes once more, and once in another zone, which must have no
        effect.
        """
        for offering in (request.offering, *self._offerings_elsewhere(request.offering)):
            try:
                # An instance that comes of it although it failed before is left to the orphan
                # cleanup.
                self._launch(replace(request, offering=offering))
            except CloudError:
                continue

    def _offerings_elsewhere(self, offering: Offering) -> Sequence[Offering]:
        return [item for item in self.catalog if item.zone != offering.zone][:1]

    def _is_sold_out(self, offering: Offering) -> bool:
        """Whether an offering is sold out, which holds for ten minutes, or its zone is lost."""
        if offering.zone in self.lost_zones:
            return True
        rate = self.faults.rates.no_capacity
        period = self.clock() // 600_000
        drawn = Random(f"{offering.name}/{period}").random()
        if offering.market is Market.ON_DEMAND:
            rate /= 2
        return drawn < rate


def cloud_rules(faults: FaultState) -> FakeRules:
    """Return how the cloud behaves under these faults."""
    rates = faults.rates
    if rates == NO_FAULTS:
        return NO_FAULT_RULES
    return replace(
        NO_FAULT_RULES,
        throttled_share=rates.throttling,
        partial_share=rates.no_capacity / 2,
        timeout_share=rates.lost_calls / 2,
        lost_request_share=rates.lost_calls / 2,
        never_boots_share=rates.dead_boots,
        late_boot_share=rates.dead_boots / 2,
        vanishes_share=rates.dead_boots / 4,
    )


def offerings(slots: int) -> tuple[Offering, ...]:
    """Return the offerings of machines of so many slots, on the spot market and on demand, in two
    zones.
    """
    catalog = []
    for market, price in ((Market.SPOT, 0.3), (Market.ON_DEMAND, 1.0)):
        for zone in ZONES:
            name = f"m{slots}/{zone}/{market}"
            catalog.append(Offering(name, f"m{slots}", zone, market, slots, price * slots))
    return tuple(catalog)
