"""Calls from machines and users to the control plane, which take time, get lost, and come late."""

from collections.abc import Callable
from typing import Any, TypeVar

from control_plane.actors.step import CommandRefused
from control_plane.simulation.virtual_clock import VirtualClock
from lambdas.simulation.fault_state import FaultState
from lambdas.simulation.hosts import Host, HostPool, NoResponse

T = TypeVar("T")

CALL_MS = (5, 80)
LATE_MS = (1_000, 40_000)
TIMEOUT_MS = 15_000


class Network:
    """The network between everybody and the API.

    Attributes:
        is_down: nobody reaches the API, which the tick does not notice.
        api_down_ms: since when the API answers nobody, not even the tick; None: it answers.
        api_stopped_ms: when it last ceased to answer.
        api_back_ms: when it last began to answer again.
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
        """Make a call, after which either `on_answer` or `on_failure` is called, once; the call may
        have been served more often. `on_failure` is given a refusal, or None where there is no
        answer.
        """
        call = _Call(self, operation, on_answer, on_failure, is_cut_off)
        self._clock.call_at(self._clock.now_ms + TIMEOUT_MS, call.give_up)
        self._send_call(call, self._delay_ms())
        if self._faults.draw_fault("duplicates", self._faults.rates.duplicates):
            self._send_call(call, self._delay_ms() + self._random_ms(LATE_MS))

    @property
    def is_unreachable(self) -> bool:
        """Whether no call gets through."""
        return self.is_down or self.is_api_down()

    def is_api_down(self) -> bool:
        """Return whether the API answers nobody."""
        return self.api_down_ms is not None

    def stop_api(self) -> None:
        """Make the API stop answering."""
        if self.api_down_ms is None:
            self.api_down_ms = self.api_stopped_ms = self._clock.now_ms

    def start_api(self) -> None:
        """Make the API answer again."""
        if self.api_down_ms is not None:
            self.api_down_ms, self.api_back_ms = None, self._clock.now_ms

    def _send_call(self, call: "_Call", delay_ms: int) -> None:
        if not self._faults.draw_fault("lost_calls", self._faults.rates.lost_calls / 2):
            self._clock.call_at(self._clock.now_ms + delay_ms, lambda: self._serve_call(call))

    def _serve_call(self, call: "_Call") -> None:
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
        is_late = self._faults.draw_fault("reordering", self._faults.rates.reordering)
        return self._random_ms(LATE_MS if is_late else CALL_MS)

    def _random_ms(self, bounds_ms: tuple[int, int]) -> int:
        return self._faults.random.randint(*bounds_ms)


class _Call:
    """One call, until its caller has an answer or has given up."""

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
        if not self._is_done and not self.is_cut_off() and not self._network.is_unreachable:
            self._is_done = True
            self._on_answer(answer)

    def fail(self, refused: CommandRefused | None) -> None:
        if not self._is_done and not self.is_cut_off():
            self._is_done = True
            self._on_failure(refused)

    def give_up(self) -> None:
        if not self._is_done:
            self._is_done = True
            self._on_failure(None)
