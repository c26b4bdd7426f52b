"""Mail between live actors: the real steps on states, parts and rows that stay in memory.

An actor folds all its mail as one commit of the engine does, and then whom it wrote to. There are
no races, no crashes and nothing is encoded: what those could change, tests/simulation tries.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from control_plane.actors import agent, experiment, pool, trial
from control_plane.actors.addresses import kind_of
from control_plane.actors.step import RowSeen, Turn
from control_plane.simulation.clock import Clock

Step = Callable[[Any, Any, Turn], Any]
Settle = Callable[[Any, Turn], Any]

_STEPS: dict[str, Step] = {
    "experiment": experiment.step,
    "trial": trial.step,
    "pool": pool.step,
    "agent": agent.step,
}
_SETTLES: dict[str, Settle] = {"pool": pool.settle}
_ABSENT = RowSeen(0, b"")


class Actor:
    """An actor and its mailbox; `state` is None before its constructor message."""

    __slots__ = ("_rows", "address", "kind", "mail", "part", "parts", "settle", "state", "step")

    def __init__(self, address: str, rows: dict[tuple[str, str], RowSeen]) -> None:
        self.address = address
        self.kind = kind_of(address)
        self.step = _STEPS[self.kind]
        self.settle = _SETTLES.get(self.kind)
        self.state: Any = None
        self.parts: dict[str, object] = {}
        # See Reader; a method of its own would be a tenth of a simulation's time.
        self.part = self.parts.get
        self.mail: list[object] = []
        self._rows = rows

    def row(self, partition: str, sort: str) -> RowSeen:
        """See Reader."""
        return self._rows.get((partition, sort), _ABSENT)


class Mail:
    """All actors of a simulated cluster. `watch` is told of each after it folded its mail."""

    def __init__(self, clock: Clock, watch: Callable[[Actor], None]) -> None:
        self._clock = clock
        self._watch = watch
        self._actors: dict[str, Actor] = {}
        self._rows: dict[tuple[str, str], RowSeen] = {}
        self._waiting: deque[Actor] = deque()

    def state(self, address: str) -> Any:
        """An actor's state, None if there is none."""
        found = self._actors.get(address)
        return None if found is None else found.state

    def post(self, address: str, *messages: object) -> None:
        """Mails messages; they are folded when the mail is next delivered."""
        actor = self._actors.get(address)
        if actor is None:
            actor = self._actors[address] = Actor(address, self._rows)
        if not actor.mail:
            self._waiting.append(actor)
        actor.mail += messages

    def deliver(self) -> None:
        """Has every actor fold its mail until there is none."""
        while self._waiting:
            actor = self._waiting.popleft()
            messages, actor.mail = actor.mail, []
            now_ms = self._clock.now_ms
            for message in messages:
                turn = Turn(actor.address, now_ms, actor)
                actor.state = actor.step(actor.state, message, turn)
                self._absorb(actor, turn)
            if actor.settle is not None and actor.state is not None:
                turn = Turn(actor.address, now_ms, actor)
                actor.state = actor.settle(actor.state, turn)
                self._absorb(actor, turn)
            self._watch(actor)

    def _absorb(self, actor: Actor, turn: Turn) -> None:
        parts = actor.parts
        for name, value in turn.parts.items():
            if value is None:
                parts.pop(name, None)
            else:
                parts[name] = value
        for row in turn.rows:
            key = (row.partition, row.sort)
            if row.body is None:
                self._rows.pop(key, None)
            else:
                revision = self._rows.get(key, _ABSENT).revision + 1
                self._rows[key] = RowSeen(revision, row.body)
        for send in turn.sends:
            self.post(send.to, send.message)
        for timer in turn.timers:
            self._clock.at(timer.due_ms, partial(self._wake, actor, timer.message))

    def _wake(self, actor: Actor, message: object) -> None:
        self.post(actor.address, message)
        self.deliver()
