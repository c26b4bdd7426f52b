"""An actor system in memory: runs the actors' steps on states, parts and rows in memory.

An actor processes all waiting messages, as in one commit of the engine. The receivers of the new
messages follow. Races, crashes and encoding are not simulated; tests/simulation covers these.
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
    """An actor with a mailbox. `state` is None until the message that creates the actor."""

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
        """Make an actor without a state. `rows` are the rows of the whole system, by key."""
        self.address = address
        self.actor_type = actor_type_name(address)
        self.apply_message = _APPLY_MESSAGE[self.actor_type]
        self.finish_fold = _FINISH_FOLDS.get(self.actor_type)
        self.state: Any = None
        self.parts: dict[str, object] = {}
        # Implements `Reader.part`. A separate method would take a tenth of a simulation's time.
        self.part = self.parts.get
        self.mailbox: list[object] = []
        self._rows = rows

    def row(self, partition: str, sort: str) -> ObservedRow:
        """Return a row by key, or the placeholder of an absent row; see Reader."""
        return self._rows.get((partition, sort), _ABSENT)


class ActorSystem:
    """All actors of a simulated cluster."""

    def __init__(self, clock: VirtualClock, watch: Callable[[SimulatedActor], None]) -> None:
        """Make a system without actors.

        Args:
            clock: the clock for the actors' times and timers.
            watch: called with each actor after the actor has processed messages.
        """
        self._clock = clock
        self._watch = watch
        self._actors: dict[str, SimulatedActor] = {}
        self._rows: dict[tuple[str, str], ObservedRow] = {}
        self._waiting: deque[SimulatedActor] = deque()

    def read_state(self, address: str) -> Any:
        """Return an actor's state, not a copy.

        Return None if the actor does not exist, or has no state yet.
        """
        actor = self._actors.get(address)
        return None if actor is None else actor.state

    def post_messages(self, address: str, *messages: object) -> None:
        """Append messages to an actor's mailbox, for the next call of `deliver_messages`.

        If the actor does not exist, make an actor without a state.
        """
        actor = self._actors.get(address)
        if actor is None:
            actor = self._actors[address] = SimulatedActor(address, self._rows)
        if not actor.mailbox:
            self._waiting.append(actor)
        actor.mailbox += messages

    def deliver_messages(self) -> None:
        """Process all messages in all mailboxes, including the messages that actors send meanwhile.

        Call `watch` with each actor that processed messages. Schedule the actors' timers with the
        clock, whose time stays the same. Raises every error of an actor.
        """
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
