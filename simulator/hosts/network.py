"""The network from machines and users to the control plane, with delays, losses and duplicates."""

from collections.abc import Callable
from typing import Any, TypeVar

from control_plane.actors.step import CommandRefused
from control_plane.simulation.virtual_clock import VirtualClock
from simulator.faults.fault_state import FaultState
from simulator.hosts.hosts import Host, HostPool, NoResponse

T = TypeVar("T")

CALL_MS = (5, 80)
LATE_MS = (1_000, 40_000)
TIMEOUT_MS = 15_000


class Network:
    """The network between all agents and users and the API. All times are virtual ms.

    Attributes:
        is_down: whether nobody reaches the API, without the tick's knowledge.
        api_down_ms: the time since which the API answers nobody, with the tick's knowledge. None
            while the API answers.
        api_stopped_ms: the time at which the API last stopped answering; 0 if never.
        api_back_ms: the time at which the API last answered again; 0 if never.
    """

    def __init__(self, clock: VirtualClock, faults: FaultState, hosts: HostPool) -> None:
        self.is_down = False
        self.api_down_ms: int | None = None
        self.api_stopped_ms = 0
        self.api_back_ms = 0
        self._clock = clock
        self._faults = faults
        self._hosts = hosts

    def call(
        self,
        operation: Callable[[Host], T],
        on_answer: Callable[[T], None],
        on_failure: Callable[[CommandRefused | None], None],
        *,
        is_cut_off: Callable[[], bool] = lambda: False,
    ) -> None:
        """Make a call with random delays and faults, without waiting.

        Later, either `on_answer` or `on_failure` is called once. Outcomes that arrive while the
        caller is cut off are lost. The operation may run never, once or twice.

        Args:
            operation: runs on a host.
            on_answer: called with the result of the operation.
            on_failure: called with the refusal of the operation, or with None if the call fails or
                has no outcome within TIMEOUT_MS.
            is_cut_off: returns whether the caller cannot reach the API at the moment.
        """
        call = _Call(self, operation, on_answer, on_failure, is_cut_off)
        self._clock.call_at(self._clock.now_ms + TIMEOUT_MS, call.give_up)
        self._send_call(call, self._delay_ms())
        if self._faults.draw_fault("duplicates", self._faults.rates.duplicates):
            self._send_call(call, self._delay_ms() + self._random_ms(LATE_MS))

    @property
    def is_unreachable(self) -> bool:
        """Whether no call reaches the API."""
        return self.is_down or self.is_api_down()

    def is_api_down(self) -> bool:
        """Return whether the API answers nobody, with the tick's knowledge."""
        return self.api_down_ms is not None

    def stop_api(self) -> None:
        """Make the API stop answering. Do nothing if the API does not answer."""
        if self.api_down_ms is None:
            self.api_down_ms = self.api_stopped_ms = self._clock.now_ms

    def start_api(self) -> None:
        """Make the API answer again. Do nothing if the API answers."""
        if self.api_down_ms is not None:
            self.api_down_ms, self.api_back_ms = None, self._clock.now_ms

    def _send_call(self, call: "_Call", delay_ms: int) -> None:
        """Serve a call after `delay_ms`, unless the fault `lost_calls` drops the call."""
        if not self._faults.draw_fault("lost_calls", self._faults.rates.lost_calls / 2):
            self._clock.call_at(self._clock.now_ms + delay_ms, lambda: self._serve_call(call))

    def _serve_call(self, call: "_Call") -> None:
        """Run the operation of a call on a host, and schedule the answer or the failure.

        Do nothing if the API is unreachable or the caller is cut off. The fault `lost_calls` may
        drop the answer, but not the failure.
        """
        if self.is_unreachable or call.is_cut_off():
            return
        try:
            answer = self._hosts.serve(call.operation)
        except NoResponse:
            self._call_later(lambda: call.fail(None))
            return
        except CommandRefused as refused:
            refusal = refused
            self._call_later(lambda: call.fail(refusal))
            return
        if not self._faults.draw_fault("lost_calls", self._faults.rates.lost_calls / 2):
            self._call_later(lambda: call.answer(answer))

    def _call_later(self, action: Callable[[], None]) -> None:
        self._clock.call_at(self._clock.now_ms + self._delay_ms(), action)

    def _delay_ms(self) -> int:
        """Return a random delay, which is much longer by the fault `reordering`."""
        is_late = self._faults.draw_fault("reordering", self._faults.rates.reordering)
        return self._random_ms(LATE_MS if is_late else CALL_MS)

    def _random_ms(self, bounds_ms: tuple[int, int]) -> int:
        return self._faults.random.randint(*bounds_ms)


class _Call:
    """A call whose outcome is passed to the caller at most once."""

    def __init__(
        self,
        network: Network,
        operation: Callable[[Host], Any],
        on_answer: Callable[[Any], None],
        on_failure: Callable[[CommandRefused | None], None],
        is_cut_off: Callable[[], bool],
    ) -> None:
        self.operation = operation
        self.is_cut_off = is_cut_off
        self._network = network
        self._on_answer = on_answer
        self._on_failure = on_failure
        self._is_done = False

    def answer(self, answer: Any) -> None:
        """Pass an answer to the caller, unless the call is over or the network is interrupted."""
        if not self._is_done and not self.is_cut_off() and not self._network.is_unreachable:
            self._is_done = True
            self._on_answer(answer)

    def fail(self, refused: CommandRefused | None) -> None:
        """Pass a failure to the caller, unless the call is over or the caller is cut off."""
        if not self._is_done and not self.is_cut_off():
            self._is_done = True
            self._on_failure(refused)

    def give_up(self) -> None:
        """Pass a failure without a refusal to the caller, unless the call is over."""
        if not self._is_done:
            self._is_done = True
            self._on_failure(None)
