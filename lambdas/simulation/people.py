"""The users of a simulated cluster: they submit searches, change their minds, and repeat what was
not answered.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from control_plane.actors import addresses
from control_plane.actors.experiment_messages import (
    ActivateRequested,
    CancelRequested,
    ExperimentSubmitted,
    KillRequested,
    PauseRequested,
    PoolChanged,
    SettingsChanged,
)
from control_plane.actors.identifiers import COUNTERS
from control_plane.actors.records import Status
from control_plane.actors.step import Refused
from control_plane.actors.trial_messages import TrialKillRequested
from control_plane.simulation.clock import Clock
from control_plane.state.table import Conflict, Expect, Key, Put, Write
from lambdas.simulation.hosts import Host
from lambdas.simulation.network import Network
from lambdas.simulation.searches import Room, Search, Searches, drawn_search
from lambdas.simulation.watch import Shadow

COUNTER = Key(COUNTERS, "experiment")
AGAIN_MS = (500, 8_000)
MINUTE_MS = 60_000
TRIES_MAX = 200


@dataclass
class Submitted:
    """An experiment that a user was told of. `left_alone`: nobody told it or its trials to end."""

    experiment_id: int
    search: Search
    left_alone: bool = True


@dataclass
class People:
    """`accepted` are the submissions that were answered, `asked` those that were made."""

    clock: Clock
    network: Network
    searches: Searches
    shadow: Shadow
    random: Random
    pools: Mapping[str, Room]
    now_ms: Callable[[], int]
    asked: int = 0
    commands: int = 0
    accepted: dict[int, Submitted] = field(default_factory=dict)

    def plan(self, experiments: int, hours: float) -> None:
        """Draws when who does what."""
        for number in range(experiments):
            pool = self.random.choice(sorted(self.pools))
            search = drawn_search(self.random, self.random.randrange(2**31), self.pools[pool])
            at_ms = round(self.random.uniform(0, hours / 2) * 60 * MINUTE_MS)
            self.clock.at(at_ms, partial(self.submit, search, pool, number))

    def activate_all(self) -> None:
        """Whoever paused something goes on with it."""
        for submitted in list(self.accepted.values()):
            state = self.shadow.state(addresses.experiment(submitted.experiment_id))
            if state is not None and state.status is Status.PAUSED:
                self._tell(submitted, ActivateRequested())

    def submit(self, search: Search, pool: str, number: int) -> None:
        """A user submits a search, and repeats that until it is answered."""
        self.asked += 1
        settings = replace(search.message.settings, pool=pool, submitted_ms=self.now_ms())
        name = f"{search.family}-{number}"
        job = replace(search.message.job, submitted_ms=settings.submitted_ms)
        message = replace(search.message, settings=settings, name=name, job=job)
        self.searches.by_name[name] = search
        key = Key("idempotency#user", f"I#submit-{number}")

        def submit(host: Host) -> int:
            return _submitted(host, message, key)

        def accepted(experiment_id: int) -> None:
            submitted = Submitted(experiment_id, search)
            self.accepted[experiment_id] = submitted
            self._change_minds(submitted)

        self._insist(submit, accepted)

    def _insist(
        self, operation: Callable[[Host], int], answered: Callable[[int], None], tries: int = 0
    ) -> None:
        """Repeats a call until it is answered; a refusal is an answer, too."""

        def failed(refused: Refused | None) -> None:
            if refused is not None:
                return
            assert tries < TRIES_MAX, "a user never got an answer"
            delay_ms = self.random.randint(*AGAIN_MS)
            again = lambda: self._insist(operation, answered, tries + 1)  # noqa: E731
            self.clock.at(self.clock.now_ms + delay_ms, again)

        self.network.call(operation, answered, failed)

    def _change_minds(self, submitted: Submitted) -> None:
        for _ in range(self.random.choice((0, 0, 1, 2, 3))):
            delay_ms = round(self.random.expovariate(1 / 20) * MINUTE_MS)
            self.clock.at(self.clock.now_ms + delay_ms, lambda: self._whim(submitted))

    def _whim(self, submitted: Submitted) -> None:
        drawn = self.random.random()
        if drawn < 0.45:
            self._tell(submitted, PauseRequested())
            delay_ms = round(self.random.expovariate(1 / 10) * MINUTE_MS)
            activate = lambda: self._tell(submitted, ActivateRequested())  # noqa: E731
            self.clock.at(self.clock.now_ms + delay_ms, activate)
        elif drawn < 0.7:
            self._tell(submitted, self._changed(submitted.search))
        elif drawn < 0.8:
            self._move(submitted)
        elif drawn < 0.87:
            self._kill_trial(submitted)
        else:
            submitted.left_alone = False
            self._tell(submitted, self.random.choice((CancelRequested(), KillRequested())))

    def _changed(self, search: Search) -> SettingsChanged:
        """Other settings of a job, in which its trials still fit."""
        slots = search.message.settings.slots
        limit = self.random.choice((slots, 2 * slots, None))
        return self.random.choice(
            (
                SettingsChanged(max_slots=limit, max_slots_given=True),
                SettingsChanged(weight=self.random.choice((0.5, 1.0, 4.0))),
                SettingsChanged(priority=self.random.choice((1, 42, 99))),
            )
        )

    def _move(self, submitted: Submitted) -> None:
        """To any pool that has room for its trials, be it the one where it is."""
        slots = submitted.search.message.settings.slots
        roomy = [name for name, room in sorted(self.pools.items()) if room.slots >= slots]
        if roomy:
            self._tell(submitted, PoolChanged(self.random.choice(roomy)))

    def _kill_trial(self, submitted: Submitted) -> None:
        of_it = [
            trial.trial_id
            for trial in self.shadow.states("trial")
            if trial.experiment_id == submitted.experiment_id
        ]
        if of_it:
            submitted.left_alone = False
            address = addresses.trial(self.random.choice(sorted(of_it)))
            self._command(address, TrialKillRequested())

    def _tell(self, submitted: Submitted, message: object) -> None:
        self._command(addresses.experiment(submitted.experiment_id), message)

    def _command(self, address: str, message: object) -> None:
        self.commands += 1
        key = Key("idempotency#user", f"I#command-{self.commands}")
        self._insist(lambda host: _commanded(host, address, message, key), lambda done: None)


def _submitted(host: Host, message: ExperimentSubmitted, key: Key) -> int:
    """Creates the experiment under the next free id, once; see control_plane.api.submission."""
    known = host.engine.table.get(key)
    if known is not None:
        return int(known.body)
    while True:
        row = host.engine.table.get(COUNTER)
        number, revision = int(row.body) if row else 1, row.revision if row else 0
        counted = Put(COUNTER, revision + 1, b"%d" % (number + 1), revision or Expect.ABSENT)
        beside = (counted, Put(key, 1, b"%d" % number, Expect.ABSENT))
        try:
            host.engine.command(
                addresses.experiment(number),
                replace(message, experiment_id=number),
                by="user",
                beside=_given(beside),
            )
            return number
        except Conflict:
            known = host.engine.table.get(key)
            if known is not None:
                return int(known.body)


def _commanded(host: Host, address: str, message: object, key: Key) -> int:
    """Carries a command out once; see control_plane.api.idempotency."""
    if host.engine.table.get(key) is not None:
        return 0
    beside = (Put(key, 1, b"", Expect.ABSENT),)
    try:
        host.engine.command(address, message, by="user", beside=_given(beside))
    except (Conflict, Refused):
        if host.engine.table.get(key) is None:
            raise
    return 0


def _given(writes: tuple[Write, ...]) -> Callable[[object], tuple[Write, ...]]:
    return lambda reply: writes
