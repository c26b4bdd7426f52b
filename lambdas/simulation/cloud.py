"""The cloud of a simulated cluster: the provider's own fake, whose machines boot agents that live
in the simulation.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from control_plane.fleet.records import IntentRow, Market, Offering
from lambdas.simulation.chances import NONE
from lambdas.simulation.disturbed import Weather
from lambdas.simulation.watch import InvariantBroken
from provisioner.clouds.fake import FakeCloud, FakeRules, Machine
from provisioner.clouds.provider import CloudError, CloudInstance, TokenReused

ZONES = ("a", "b")
REPLAY_MS = (100, 900_000)
CALM = FakeRules(
    visible_ms=(0, 30_000),
    running_ms=(5_000, 40_000),
    boot_ms=(10_000, 60_000),
    ending_ms=(2_000, 40_000),
    stale_ms=20_000,
)


class SimulatedCloud(FakeCloud):
    """`heard` is told of each machine that comes, and of each that begins to end; `given_up` of
    each whose end is asked for.
    """

    heard: Callable[[Machine], None]
    later: Callable[[int, Callable[[], None]], None]
    given_up: Callable[[str], None]
    weather: Weather

    def launch(self, request: IntentRow) -> tuple[CloudInstance, ...]:
        """See CloudProvider. A request may arrive again, much later, or in another zone."""
        weather = self.weather
        if weather.strikes("replayed_tokens", weather.chances.replayed_tokens):
            delay_ms = weather.random.randint(*REPLAY_MS)
            self.later(delay_ms, lambda: self._replay(request))
        try:
            return self._launch(request)
        except TokenReused as error:
            raise InvariantBroken(f"{request}: {error}") from None

    def terminate(self, ids: Sequence[str]) -> None:
        """See CloudProvider."""
        for name in ids:
            self.given_up(name)
        super().terminate(ids)

    def end(self, name: str) -> None:
        """See FakeCloud."""
        super().end(name)
        self.heard(self.machines[name])

    def _launch(self, request: IntentRow) -> tuple[CloudInstance, ...]:
        known = set(self.machines)
        if self._sold_out(request.offering):
            self.capacity[request.offering.name] = 0
        else:
            self.capacity.pop(request.offering.name, None)
        try:
            return super().launch(request)
        finally:
            for name in list(self.machines):
                if name not in known:
                    self.heard(self.machines[name])

    def _replay(self, request: IntentRow) -> None:
        """The same bytes once more; and once with the zone of another place, which must not do."""
        for offering in (request.offering, *self._elsewhere(request.offering)):
            try:
                # What comes of it although it failed the first time is the sweep's business.
                self._launch(replace(request, offering=offering))
            except CloudError:
                continue

    def _elsewhere(self, offering: Offering) -> Sequence[Offering]:
        return [it for it in self.sold if it.zone != offering.zone][:1]

    def _sold_out(self, offering: Offering) -> bool:
        """Whether an offering can be had does not change from one call to the next."""
        share = self.weather.chances.no_capacity
        period = self.clock() // 600_000
        drawn = Random(f"{offering.name}/{period}").random()
        if offering.market is Market.ON_DEMAND:
            share /= 2
        return drawn < share


def rules_of(weather: Weather) -> FakeRules:
    """How the cloud behaves in this weather."""
    chances = weather.chances
    if chances == NONE:
        return CALM
    return replace(
        CALM,
        throttled_share=chances.throttling,
        partial_share=chances.no_capacity / 2,
        timeout_share=chances.lost_calls / 2,
        lost_request_share=chances.lost_calls / 2,
        never_boots_share=chances.dead_boots,
        late_boot_share=chances.dead_boots / 2,
        vanishes_share=chances.dead_boots / 4,
    )


def offerings(slots: int) -> tuple[Offering, ...]:
    """What is sold: machines of so many slots on the spot market and on demand, in two zones."""
    found = []
    for market, price in ((Market.SPOT, 0.3), (Market.ON_DEMAND, 1.0)):
        for zone in ZONES:
            name = f"m{slots}/{zone}/{market}"
            found.append(Offering(name, f"m{slots}", zone, market, slots, price * slots))
    return tuple(found)
