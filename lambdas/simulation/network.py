"""Calls from machines and users to the control plane, which take time, get lost, and come late."""

from collections.abc import Callable
from typing import Any, TypeVar

from control_plane.actors.step import Refused
from control_plane.simulation.clock import Clock
from lambdas.simulation.disturbed import Weather
from lambdas.simulation.hosts import Host, Hosts, NoAnswer

T = TypeVar("T")

CALL_MS = (5, 80)
LATE_MS = (1_000, 40_000)
TIMEOUT_MS = 15_000


class Network:
    """Between everybody and the API. While `out` nobody reaches it."""

    def __init__(self, clock: Clock, weather: Weather, hosts: Hosts) -> None:
        self.out = False
        self._clock = clock
        self._weather = weather
        self._hosts = hosts

    def call(
        self,
        operation: Callable[[Host], T],
        answered: Callable[[T], None],
        failed: Callable[[Refused | None], None],
        *,
        cut_off: Callable[[], bool] = lambda: False,
    ) -> None:
        """Makes a call, of which either `answered` or `failed` hears, once; it may have been
        served more often than that. `failed` is given a refusal, or None where there is no answer.
        """
        call = _Call(self, operation, answered, failed, cut_off)
        self._clock.at(self._clock.now_ms + TIMEOUT_MS, call.give_up)
        self._send(call, self._delay_ms())
        if self._weather.strikes("duplicates", self._weather.chances.duplicates):
            self._send(call, self._delay_ms() + self._between(LATE_MS))

    def _send(self, call: "_Call", delay_ms: int) -> None:
        if not self._weather.strikes("lost_calls", self._weather.chances.lost_calls / 2):
            self._clock.at(self._clock.now_ms + delay_ms, lambda: self._arrive(call))

    def _arrive(self, call: "_Call") -> None:
        if self.out or call.cut_off():
            return
        try:
            answer = self._hosts.serve(call.operation)
        except NoAnswer:
            self._later(lambda: call.fail(None))
            return
        except Refused as refused:
            found = refused
            self._later(lambda: call.fail(found))
            return
        if not self._weather.strikes("lost_calls", self._weather.chances.lost_calls / 2):
            self._later(lambda: call.answer(answer))

    def _later(self, action: Callable[[], None]) -> None:
        self._clock.at(self._clock.now_ms + self._delay_ms(), action)

    def _delay_ms(self) -> int:
        late = self._weather.strikes("reordering", self._weather.chances.reordering)
        return self._between(LATE_MS if late else CALL_MS)

    def _between(self, bounds_ms: tuple[int, int]) -> int:
        return self._weather.random.randint(*bounds_ms)


class _Call:
    """One call, until its caller has heard of it or has given up."""

    def __init__(
        self,
        network: Network,
        operation: Callable[[Host], Any],
        answered: Callable[[Any], None],
        failed: Callable[[Refused | None], None],
        cut_off: Callable[[], bool],
    ) -> None:
        self.operation = operation
        self.cut_off = cut_off
        self._network = network
        self._answered = answered
        self._failed = failed
        self._over = False

    def answer(self, answer: Any) -> None:
        if not self._over and not self.cut_off() and not self._network.out:
            self._over = True
            self._answered(answer)

    def fail(self, refused: Refused | None) -> None:
        if not self._over and not self.cut_off():
            self._over = True
            self._failed(refused)

    def give_up(self) -> None:
        if not self._over:
            self._over = True
            self._failed(None)
