"""The users of a simulated cluster, who submit searches and send commands.

A user repeats a call that gets no answer.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

from control_plane.actors import addresses
from control_plane.actors.messages.experiment import (
    ActivateRequested,
    CancelRequested,
    ExperimentSubmitted,
    KillRequested,
    PauseRequested,
    PoolChanged,
    SettingsChanged,
)
from control_plane.actors.messages.trial import CheckpointVerified, TrialKillRequested
from control_plane.actors.pool_moves import PoolPreferences
from control_plane.actors.records import Status
from control_plane.actors.step import CommandRefused
from control_plane.simulation.virtual_clock import VirtualClock
from simulator.checks.state_checker import StateChecker
from simulator.hosts.commands import command_once, idempotency_key, submit_once
from simulator.hosts.hosts import Host
from simulator.hosts.network import Network
from simulator.seeded.searches import EPOCHS_SHARE, PoolCapacity, Search, Searches, sample_search

RETRY_MS = (500, 8_000)
MINUTE_MS = 60_000
PATIENCE_MS = (MINUTE_MS, 30 * MINUTE_MS)
TRIES_MAX = 200


@dataclass
class SubmittedExperiment:
    """An experiment whose submission was answered."""

    experiment_id: int
    search: Search
    runs_to_end: bool = True
    """Whether no user has stopped the experiment or any of its trials."""


@dataclass
class Users:
    """All users of the cluster, who make random choices from `random`."""

    clock: VirtualClock
    network: Network
    searches: Searches
    checker: StateChecker
    random: Random
    pools: Mapping[str, PoolCapacity]
    """The capacity of each pool."""
    now_ms: Callable[[], int]
    """Returns the virtual time in epoch ms."""
    epochs_share: float = EPOCHS_SHARE
    """The share of searches whose lengths are in epochs."""
    raises_events: bool = False
    """Whether a webhook announces the experiments."""
    submissions: int = 0
    """The number of submissions, answered or not."""
    are_quiet: bool = False
    """Whether users send no commands about later submissions."""
    commands: int = 0
    """The number of commands, answered or not."""
    verifications: int = 0
    """The number of answered verifications of checkpoints."""
    experiments: dict[int, SubmittedExperiment] = field(default_factory=dict)
    """The experiments whose submission was answered, by id."""

    def schedule_submissions(self, count: int, hours: float) -> None:
        """Sample `count` searches, and schedule their submissions in the first half of `hours`."""
        for number in range(count):
            pool = self.random.choice(sorted(self.pools))
            seed = self.random.randrange(2**31)
            search = sample_search(self.random, seed, self.pools[pool], self.epochs_share)
            message = self._add_preferences(search.message, pool, Random(f"{seed}/pools"))
            search = replace(search, message=message)
            at_ms = round(self.random.uniform(0, hours / 2) * 60 * MINUTE_MS)
            self.clock.call_at(at_ms, partial(self.submit, search, pool, number))

    def activate_all(self) -> None:
        """Send a command to activate each paused experiment."""
        for submitted in list(self.experiments.values()):
            state = self.checker.actor_state(addresses.experiment(submitted.experiment_id))
            if state is not None and state.status is Status.PAUSED:
                self._command_experiment(submitted, ActivateRequested())

    def verify_later(self, trial_id: int, uuid: str) -> None:
        """Schedule a user's command that verifies a checkpoint which a run has reported as damaged.

        In half of the cases, do nothing. The command is sent after ten minutes on average. By then,
        the trial may have continued, ended or deleted the checkpoint. `verifications` counts the
        answer.
        """
        random = Random(f"{self.clock.now_ms}/{uuid}")
        if random.random() < 0.5:
            return
        delay_ms = round(random.expovariate(1 / 10) * MINUTE_MS)
        verify = partial(self._command_actor, addresses.trial(trial_id), CheckpointVerified(uuid))
        self.clock.call_at(self.clock.now_ms + delay_ms, partial(verify, self._count_verification))

    def _count_verification(self, done: int) -> None:
        self.verifications += 1

    def submit(self, search: Search, pool: str, number: int) -> None:
        """Submit a search to a pool, and repeat the call until an answer or a refusal.

        Return before the call ends. After the answer, add the experiment to `experiments`, and
        schedule random commands about it, unless `are_quiet`. A refusal ends the submission. The
        simulation fails with an AssertionError after TRIES_MAX repetitions.

        Args:
            number: the number of the submission, for the experiment's name.
        """
        self.submissions += 1
        now_ms, left_ms = self.now_ms(), search.deadline_ms
        settings = replace(
            search.message.settings,
            pool=pool,
            submitted_ms=now_ms,
            deadline_ms=None if left_ms is None else now_ms + left_ms,
        )
        name = f"{search.family}-{number}"
        job = replace(search.message.job, submitted_ms=now_ms, deadline_ms=settings.deadline_ms)
        message = replace(
            search.message,
            settings=settings,
            name=name,
            job=job,
            has_growing_id_blocks=True,
            raises_events=self.raises_events,
        )
        self.searches.by_name[name] = search
        key = idempotency_key(f"submit-{number}")

        def submit(host: Host) -> int:
            return submit_once(host, message, key)

        def handle_answer(experiment_id: int) -> None:
            submitted = SubmittedExperiment(experiment_id, search)
            self.experiments[experiment_id] = submitted
            self._schedule_commands(submitted)

        self._retry_until_answered(submit, handle_answer)

    def _retry_until_answered(
        self, operation: Callable[[Host], int], on_answer: Callable[[int], None], tries: int = 0
    ) -> None:
        """Repeat a call, with random pauses, until the call is answered or refused.

        Return before the first call ends. The simulation fails with an AssertionError after
        TRIES_MAX repetitions.

        Args:
            operation: runs on a host; may run more than once.
            on_answer: called with the result of `operation`; not called after a refusal.
            tries: the number of failed calls so far.
        """

        def retry(refused: CommandRefused | None) -> None:
            if refused is not None:
                return
            assert tries < TRIES_MAX, "a user never got an answer"
            delay_ms = self.random.randint(*RETRY_MS)
            try_again = partial(self._retry_until_answered, operation, on_answer, tries + 1)
            self.clock.call_at(self.clock.now_ms + delay_ms, try_again)

        self.network.call(operation, on_answer, retry)

    def _schedule_commands(self, submitted: SubmittedExperiment) -> None:
        """Schedule up to three random commands about an experiment; none if `are_quiet`."""
        if self.are_quiet:
            return
        for _ in range(self.random.choice((0, 0, 1, 2, 3))):
            delay_ms = round(self.random.expovariate(1 / 20) * MINUTE_MS)
            self.clock.call_at(
                self.clock.now_ms + delay_ms, lambda: self._send_random_command(submitted)
            )

    def _send_random_command(self, submitted: SubmittedExperiment) -> None:
        """Send a random command: pause, change settings or pool, kill a trial, cancel or kill.

        A paused experiment is activated later. Stopping a trial or the experiment clears
        `runs_to_end`.
        """
        number = self.random.random()
        if number < 0.45:
            self._command_experiment(submitted, PauseRequested())
            delay_ms = round(self.random.expovariate(1 / 10) * MINUTE_MS)
            activate = partial(self._command_experiment, submitted, ActivateRequested())
            self.clock.call_at(self.clock.now_ms + delay_ms, activate)
        elif number < 0.7:
            self._command_experiment(submitted, self._random_settings_change(submitted.search))
        elif number < 0.8:
            self._change_pool(submitted)
        elif number < 0.87:
            self._kill_trial(submitted)
        else:
            submitted.runs_to_end = False
            self._command_experiment(
                submitted, self.random.choice((CancelRequested(), KillRequested()))
            )

    def _random_settings_change(self, search: Search) -> SettingsChanged:
        """Return a random change of a job's limit, weight or priority.

        The limit always suffices for a trial.
        """
        slots = search.message.settings.slots
        limit = self.random.choice((slots, 2 * slots, None))
        return self.random.choice(
            (
                SettingsChanged(max_slots=limit, max_slots_given=True),
                SettingsChanged(weight=self.random.choice((0.5, 1.0, 4.0))),
                SettingsChanged(priority=self.random.choice((1, 42, 99))),
            )
        )

    def _change_pool(self, submitted: SubmittedExperiment) -> None:
        """Move an experiment to a random pool that its trials fit into, maybe the current pool."""
        fitting = self._fitting_pools(submitted.search.message)
        if fitting:
            self._command_experiment(submitted, PoolChanged(self.random.choice(fitting)))

    def _add_preferences(
        self, message: ExperimentSubmitted, pool: str, random: Random
    ) -> ExperimentSubmitted:
        """Return the submission, in half of the cases with other pools as alternatives.

        `pool` is preferred, followed by all other pools that the trials fit into. The preferences
        also contain a random patience from PATIENCE_MS, after which the trials may move to the next
        pool. Return `message` unchanged, without use of `random`, if no other pool fits.
        """
        others = [name for name in self._fitting_pools(message) if name != pool]
        if not others or random.random() < 0.5:
            return message
        pools = PoolPreferences((pool, *others), random.randint(*PATIENCE_MS))
        return replace(message, pools=pools)

    def _fitting_pools(self, message: ExperimentSubmitted) -> list[str]:
        """Return the pools in which a whole trial fits on a single machine, sorted by name."""
        slots = message.settings.slots
        return [name for name, capacity in sorted(self.pools.items()) if capacity.slots >= slots]

    def _kill_trial(self, submitted: SubmittedExperiment) -> None:
        """Send a command to kill a random trial of an experiment. Do nothing without trials."""
        trials = [
            trial.trial_id
            for trial in self.checker.actor_states("trial")
            if trial.experiment_id == submitted.experiment_id
        ]
        if trials:
            submitted.runs_to_end = False
            address = addresses.trial(self.random.choice(sorted(trials)))
            self._command_actor(address, TrialKillRequested())

    def _command_experiment(self, submitted: SubmittedExperiment, message: object) -> None:
        self._command_actor(addresses.experiment(submitted.experiment_id), message)

    def _command_actor(
        self,
        address: str,
        message: object,
        on_answer: Callable[[int], None] = lambda done: None,
    ) -> None:
        """Send a command to an actor, and repeat the call until an answer or a refusal.

        Return before the call ends. The actor executes the command at most once. The simulation
        fails with an AssertionError after TRIES_MAX repetitions.

        Args:
            on_answer: called with 0 after the answer; not called after a refusal.
        """
        self.commands += 1
        key = idempotency_key(f"command-{self.commands}")
        self._retry_until_answered(
            lambda host: command_once(host, address, message, key), on_answer
        )
