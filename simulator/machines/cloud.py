"""The cloud of a simulated cluster: the provisioner's fake cloud, extended by faults.

The machines of the cloud boot simulated agents.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from control_plane.fleet.records import IntentRow, Market, Offering
from provisioner.clouds.fake.provider import FakeCloud, FakeMachine, FakeRules
from provisioner.clouds.provider import CloudError, CloudInstance, TokenReused
from simulator.checks.state_checker import InvariantBroken
from simulator.faults.fault_rates import NO_FAULTS
from simulator.faults.fault_state import FaultState

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
    """A fake cloud with the simulation's faults.

    All attributes must be set before the first use.
    """

    lost_zones: set[str]
    """The zones in which no machine can be launched."""

    on_machine_change: Callable[[FakeMachine], None]
    """Called with each new machine, and with each machine that is being shut down."""
    call_later: Callable[[int, Callable[[], None]], None]
    """Calls a function after a delay in ms."""
    on_terminate: Callable[[str], None]
    """Called with the id of each machine before it is terminated."""
    faults: FaultState

    def launch(self, request: IntentRow) -> tuple[CloudInstance, ...]:
        """Launch machines as CloudProvider describes.

        By the fault `replayed_tokens`, the request is repeated later, also for another zone. Raises
        InvariantBroken if the token was used with a different request, and CloudError.
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
        """Call `on_terminate` with each id, then terminate as CloudProvider describes."""
        for name in ids:
            self.on_terminate(name)
        super().terminate(ids)

    def shut_down(self, name: str) -> None:
        """Shut a machine down as FakeCloud describes, then call `on_machine_change`."""
        super().shut_down(name)
        self.on_machine_change(self.machines[name])

    def _launch(self, request: IntentRow) -> tuple[CloudInstance, ...]:
        """Launch as FakeCloud does, without capacity for a sold-out offering.

        Call `on_machine_change` with each new machine, also after an error. Raises CloudError.
        """
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
        """Repeat a launch request unchanged and for another zone. Ignore errors of the cloud.

        If the first request failed, the repetition may launch an instance without an owner.
        """
        for offering in (request.offering, *self._offerings_elsewhere(request.offering)):
            try:
                # If the first request failed, the repetition may launch an instance. The orphan
                # cleanup must terminate this instance.
                self._launch(replace(request, offering=offering))
            except CloudError:
                continue

    def _offerings_elsewhere(self, offering: Offering) -> Sequence[Offering]:
        """Return the first offering in another zone, or nothing if all are in the same zone."""
        return [item for item in self.catalog if item.zone != offering.zone][:1]

    def _is_sold_out(self, offering: Offering) -> bool:
        """Return whether an offering's zone is lost, or the offering is sold out.

        Whether an offering is sold out depends on its name and the time only, and changes every ten
        minutes. On-demand offerings are sold out half as often.
        """
        if offering.zone in self.lost_zones:
            return True
        rate = self.faults.rates.no_capacity
        period = self.clock() // 600_000
        drawn = Random(f"{offering.name}/{period}").random()
        if offering.market is Market.ON_DEMAND:
            rate /= 2
        return drawn < rate


def cloud_rules(faults: FaultState) -> FakeRules:
    """Return the rules of the fake cloud for the current rates of the faults."""
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
    """Return the offerings of machines with this number of slots: spot, then on-demand.

    Each market has an offering in each zone of ZONES.
    """
    catalog = []
    for market, price in ((Market.SPOT, 0.3), (Market.ON_DEMAND, 1.0)):
        for zone in ZONES:
            name = f"m{slots}/{zone}/{market}"
            catalog.append(Offering(name, f"m{slots}", zone, market, slots, price * slots))
    return tuple(catalog)
