"""An actor system in memory: the actors' own steps, on states, parts and rows that are not stored.

An actor folds all its messages as one commit of the engine does, then the actors it wrote to. There
are no races, no crashes and nothing is encoded: tests/simulation covers what those could change.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from control_plane.actors.addresses import actor_type_name
from control_plane.actors.agent import actor as agent
from control_plane.actors.experiment import actor as experiment
from control_plane.actors.pool import actor as pool
from control_plane.actors.step import ObservedRow, StepContext
from control_plane.actors.trial import actor as trial
from control_plane.simulation.virtual_clock import VirtualClock

ApplyMessage = Callable[[Any, Any, StepContext], Any]
FinishFold = Callable[[Any, StepContext], Any]

_APPLY_MESSAGE: dict[str, ApplyMessage] = {
    "experiment": experiment.step,
    "trial": trial.step,
    "pool": pool.step,
    "agent": agent.step,
}
_FINISH_FOLDS: dict[str, FinishFold] = {"pool": pool.finish_fold}
_ABSENT = ObservedRow(0, b"")


class SimulatedActor:
    """An actor and its mailbox; `state` is None before its constructor message."""

    __slots__ = (
        "_rows",
        "actor_type",
        "address",
        "apply_message",
        "finish_fold",
        "mailbox",
        "part",
        "parts",
        "state",
    )

    def __init__(self, address: str, rows: dict[tuple[str, str], ObservedRow]) -> None:
        self.address = address
        self.actor_type = actor_type_name(address)
        self.apply_message = _APPLY_MESSAGE[self.actor_type]
        self.finish_fold = _FINISH_FOLDS.get(self.actor_type)
        self.state: Any = None
        self.parts: dict[str, object] = {}
        # See Reader; a method of its own would be a tenth of a simulation's time.
        self.part = self.parts.get
        self.mailbox: list[object] = []
        self._rows = rows

    def row(self, partition: str, sort: str) -> ObservedRow:
        """The row as the step reads it."""
        return self._rows.get((partition, sort), _ABSENT)


class ActorSystem:
    """All actors of a simulated cluster. `watch` is called with each that folded its messages."""

    def __init__(self, clock: VirtualClock, watch: Callable[[SimulatedActor], None]) -> None:
        self._clock = clock
        self._watch = watch
        self._actors: dict[str, SimulatedActor] = {}
        self._rows: dict[tuple[str, str], ObservedRow] = {}
        self._waiting: deque[SimulatedActor] = deque()

    def read_state(self, address: str) -> Any:
        """Return an actor's state, None if there is none."""
        found = self._actors.get(address)
        return None if found is None else found.state

    def post_messages(self, address: str, *messages: object) -> None:
        """Post messages; they are folded at the next delivery."""
        actor = self._actors.get(address)
        if actor is None:
            actor = self._actors[address] = SimulatedActor(address, self._rows)
        if not actor.mailbox:
            self._waiting.append(actor)
        actor.mailbox += messages

    def deliver_messages(self) -> None:
        """Make every actor fold its messages until there are none."""
        while self._waiting:
            actor = self._waiting.popleft()
            messages, actor.mailbox = actor.mailbox, []
            now_ms = self._clock.now_ms
            for message in messages:
                context = StepContext(actor.address, now_ms, actor)
                actor.state = actor.apply_message(actor.state, message, context)
                self._apply_effects(actor, context)
            if actor.finish_fold is not None and actor.state is not None:
                context = StepContext(actor.address, now_ms, actor)
                actor.state = actor.finish_fold(actor.state, context)
                self._apply_effects(actor, context)
            self._watch(actor)

    def _apply_effects(self, actor: SimulatedActor, context: StepContext) -> None:
        parts = actor.parts
        for name, value in context.parts.items():
            if value is None:
                parts.pop(name, None)
            else:
                parts[name] = value
        for row in context.rows:
            key = (row.partition, row.sort)
            if row.body is None:
                self._rows.pop(key, None)
            else:
                revision = self._rows.get(key, _ABSENT).revision + 1
                self._rows[key] = ObservedRow(revision, row.body)
        for send in context.sends:
            self.post_messages(send.to, send.message)
        for timer in context.timers:
            self._clock.call_at(timer.due_ms, partial(self._fire_timer, actor, timer.message))

    def _fire_timer(self, actor: SimulatedActor, message: object) -> None:
        self.post_messages(actor.address, message)
        self.deliver_messages()
