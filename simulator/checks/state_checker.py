"""A checker of the state after every commit, on a copy of the table that the checker maintains."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from threading import RLock
from typing import Any
from zlib import crc32

from control_plane.actors import addresses
from control_plane.actors.agent.actor import AgentState
from control_plane.actors.experiment.state import ExperimentState
from control_plane.actors.experiment.trial_summaries import Summaries, TrialSummary
from control_plane.actors.pool.actor import PoolState, agents_of, job_queue_of
from control_plane.actors.pool.job_queue import JobQueue
from control_plane.actors.records import Place, Status
from control_plane.actors.replacement import decode_replacement
from control_plane.actors.step import ObservedRow, StepContext
from control_plane.actors.trial.state import DesiredState, TrialState
from control_plane.actors.use import NO_USE
from control_plane.engine.actor_types import ACTOR_TYPES, actor_type_at, parse_json
from control_plane.engine.head import HEAD, PARTS, decode_head
from control_plane.engine.journal import JOURNAL, decode_journal_row
from control_plane.engine.mailbox import MAIL, TIMERS, mail_key
from control_plane.rows import actor_rows, pool_rows
from control_plane.state.table import Delete, InvalidCommit, Key, Put, StateTable, Write
from simulator.checks.time_rules import (
    check_quiet_hours,
    check_restart_window,
    check_time_limit,
)
from simulator.faults.table_faults import TableDecorator


class InvariantBroken(BaseException):
    """An invariant does not hold.

    This is a BaseException, so that no handler of Exception in the engine catches it.
    """


class StateChecker:
    """A copy of all rows and the decoded actors, which checks each commit.

    Several tables on the same file share a checker.

    Args:
        unchecked: whether to maintain the copy without any checks.

    Attributes:
        lock: held by CheckedTable during a commit and its check.
        rows: the last Put of each existing row.
        commits: the number of commits.
        digest: a checksum of the keys of all commits.
        preemptions: the number of preemptions of allocations.
        outbox_commits: the numbers of the commits that wrote a spilled outbox.
        on_mail: called with the address of an actor that gets a message or timer.
        on_commit: called with the writes of each checked commit.
        on_leases: called after `on_commit` with the same writes.
    """

    def __init__(self, *, unchecked: bool = False) -> None:
        self._unchecked = unchecked
        self.lock = RLock()
        self.rows: dict[Key, Put] = {}
        self.commits = 0
        self.digest = 0
        self.preemptions = 0
        self.outbox_commits: list[int] = []
        self.on_mail: Callable[[str], None] = lambda address: None
        self.on_commit: Callable[[Sequence[Write]], None] = lambda writes: None
        self.on_leases: Callable[[Sequence[Write]], None] = lambda writes: None
        self._mail: set[Key] = set()
        self._states: dict[str, Any] = {}
        self._parts: dict[Key, object] = {}
        self._folded_clocks: dict[tuple[str, str], int] = {}

    def actor_state(self, address: str) -> Any:
        """Return an actor's state. Return None if no commit wrote the actor."""
        return self._states.get(address)

    def actor_states(self, actor_type: str) -> list[Any]:
        """Return the states of all actors of a type."""
        return [state for name, state in self._states.items() if name.startswith(f"{actor_type}#")]

    def pending_mail(self) -> list[Key]:
        """Return the keys of messages and timers that are not folded yet, sorted."""
        return sorted(self._mail)

    def folded_messages(self, address: str) -> list[tuple[str, dict[str, Any]]]:
        """Return the names and fields of the messages and commands that an actor has folded.

        The result is read from the actor's journal, in order. Return [] for an unknown actor.
        """
        messages: list[tuple[str, dict[str, Any]]] = []
        for key in sorted(key for key in self.rows if key.partition == address):
            if key.sort.startswith(f"{JOURNAL}0"):
                entry = decode_journal_row(self.rows[key].body)
                for mail in entry["in"]:
                    messages += [(name, fields) for name, fields in mail["messages"]]
                messages += [(name, fields) for name, fields in entry["command"]]
        return messages

    def part(self, address: str, name: str) -> object | None:
        """Return a decoded part of an actor: a piece of the state in a separate row.

        `name` is for example `trials/0`. Return None if the part does not exist.
        """
        key = Key(address, PARTS + name)
        if key not in self.rows:
            return None
        if key not in self._parts:
            self._parts[key] = actor_type_at(address).decode_part(name, self.rows[key].body)
        return self._parts[key]

    def job_queue(self, pool: str) -> JobQueue:
        """Return the queue of a pool's jobs and requests."""
        address = addresses.pool(pool)
        return job_queue_of(StepContext(address, 0, self._reader(address)))

    def apply_commit(self, writes: Sequence[Write]) -> None:
        """Apply the writes of a successful commit to the copy, and check the invariants.

        Call `on_mail` for each written message or timer, and after the checks `on_commit` and
        `on_leases`. With `unchecked`, make no checks and call only `on_mail`. Raises AssertionError
        if an invariant is broken, and InvariantBroken from a callback.
        """
        self.commits += 1
        keys = "".join([f"{write.key.partition}/{write.key.sort};" for write in writes])
        self.digest = crc32(keys.encode(), self.digest)
        if any(write.key.sort.startswith(actor_rows.OUTBOX.sort) for write in writes):
            self.outbox_commits.append(self.commits)
        mail_before = {
            write.key: self.rows[write.key] for write in writes if write.key in self._mail
        }
        known_pools = {
            write.key.partition: self._states.get(write.key.partition)
            for write in writes
            if write.key.partition.startswith(actor_rows.POOL)
        }
        for write in writes:
            if isinstance(write, Put):
                self._apply_put(write)
            elif isinstance(write, Delete):
                self.rows.pop(write.key, None)
                self._mail.discard(write.key)
                self._parts.pop(write.key, None)
        if self._unchecked:
            return
        partitions = {write.key.partition for write in writes if write.key.sort == HEAD}
        for write in writes:
            if isinstance(write, Put) and write.key.sort.startswith(f"{JOURNAL}0"):
                self._check_order(write, mail_before, partitions)
        self._check_starts(writes, known_pools)
        for address in {write.key.partition for write in writes}:
            self._check_actor(address)
        self.on_commit(writes)
        self.on_leases(writes)

    def _apply_put(self, put: Put) -> None:
        """Apply a Put to the copy.

        A message or timer becomes pending mail, and `on_mail` is called. If the Put writes an
        actor's head (the row with the state), keep the decoded state, and count a new preemption.
        Before that, unless `unchecked` is set, check the change. Raises AssertionError.
        """
        before = self.rows.get(put.key)
        self.rows[put.key] = put
        self._parts.pop(put.key, None)
        address = put.key.partition
        if put.key.sort.startswith((MAIL, TIMERS)):
            self._mail.add(put.key)
            self.on_mail(address)
        if address.startswith(pool_rows.REPLACEMENT.partition) and not self._unchecked:
            _check_replacement(put)
        if put.key.sort != HEAD or address.partition("#")[0] not in ACTOR_TYPES:
            return
        after = actor_type_at(address).decode_state(decode_head(put.body)[1])
        if not self._unchecked:
            self._check_change(address, before, put, after)
        if isinstance(after, TrialState) and _is_preempted(after):
            self.preemptions += not _is_preempted(self._states.get(address))
        self._states[address] = after

    def _check_order(
        self, journal: Put, mail_before: Mapping[Key, Put], partitions: Set[str]
    ) -> None:
        """Check that a fold consumes each message once, unchanged and in the sender's order.

        A row of mail is folded from its beginning, and keeps the messages that are not folded.
        Messages without a row must come from an actor in the same commit. Timers and messages from
        outside any actor are not checked. The clocks of folded messages are stored, and later folds
        must not have older clocks. Raises AssertionError.

        Args:
            journal: the journal row of the fold.
            mail_before: the mail rows before the commit that the commit writes.
            partitions: the actors whose heads the commit writes.
        """
        address = journal.key.partition
        for mail in decode_journal_row(journal.body)["in"]:
            sender, clock = mail["from"], mail["clock"]
            if sender.partition("#")[0] not in ACTOR_TYPES or sender == address:
                # Timers and posted messages are not in the order of a sender.
                continue
            key = mail_key(address, clock, sender)
            # A message that the sender's own commit delivered never had a row.
            if key in mail_before:
                rest = self.rows.get(key)
                folded = [*mail["messages"], *(_messages_of(rest) if rest else ())]
                is_as_sent = _messages_of(mail_before[key]) == folded
                assert is_as_sent, f"{address} folds {clock} of {sender} otherwise than sent"
            else:
                assert sender in partitions, f"{address} folds {clock} of {sender}, never sent"
            last_clock = self._folded_clocks.get((address, sender), -1)
            assert clock >= last_clock, f"{address} folds {clock} of {sender} after {last_clock}"
            self._folded_clocks[address, sender] = clock

    def _check_change(self, address: str, before: Put | None, put: Put, after: Any) -> None:
        """Check the change of an actor's state. Raises AssertionError if a rule is broken.

        - Revisions increase by 1. A new actor begins with revision 1.
        - Experiments and trials follow the rules of `_check_run_generation`.
        - A trial's epoch never decreases. Its restarts decrease only in a new run
          generation.
        - A trial gets no slots on an excluded agent. A failure after a log policy has canceled
          retries ends the trial.
        - The newest checkpoint of an unfinished trial gets older or disappears only after a report
          of damage.
        """
        assert put.revision == (before.revision + 1 if before else 1), f"{address} skips a revision"
        known = self._states.get(address)
        if isinstance(known, ExperimentState | TrialState):
            _check_run_generation(address, known, after)
        if isinstance(known, TrialState):
            assert after.epoch >= known.epoch, f"{address} goes back to epoch {after.epoch}"
            goes_on = after.run_generation > known.run_generation
            assert goes_on or after.restarts >= known.restarts, f"{address} forgets a restart"
            _check_log_policies(address, known, after)
            check_time_limit(address, known, after)
            check_restart_window(address, known, after)
            _check_use(address, known, after)
            if not known.status.is_final and known.checkpoint is not None:
                newest = after.checkpoint
                is_older = (
                    newest is None or newest.steps_completed < known.checkpoint.steps_completed
                )
                fell_back = after.recent_damages != known.recent_damages
                assert fell_back or not is_older, f"{address} forgets its newest checkpoint"

    def _check_starts(self, writes: Sequence[Write], known: Mapping[str, Any]) -> None:
        """Check that the commit starts no work in quiet hours. Raises AssertionError.

        Args:
            writes: the writes of the commit.
            known: the state of each changed pool before the commit.
        """
        for write in writes:
            address, sort = write.key
            after = self._states.get(address)
            is_entry = sort.startswith(f"{JOURNAL}0")
            if is_entry and isinstance(write, Put) and isinstance(after, PoolState):
                now_ms = int(decode_journal_row(write.body)["now"])
                context = StepContext(address, now_ms, self._reader(address))
                check_quiet_hours(known.get(address), after, now_ms, context)

    def _check_actor(self, address: str) -> None:
        """Check the state of a pool, an experiment or all agents, by the actor at `address`."""
        state = self._states.get(address)
        match state:
            case PoolState():
                self._check_pool(address, state)
            case ExperimentState():
                self._check_experiment(address, state)
            case AgentState():
                self._check_agents()

    def _check_pool(self, address: str, state: PoolState) -> None:
        """Check a pool's slots and counts. Raises AssertionError.

        Each slot belongs to at most one allocation, or to allocations of one job that share slots.
        Each allocation is either queued or placed once. The counts in the pool's head and in the
        jobs must be correct.
        """
        context = StepContext(address, 0, self._reader(address))
        agents = agents_of(context).items()
        places = [request.allocation_id for request in job_queue_of(context).all_requests()]
        assert len(places) == state.queued, f"{places} are queued, not {state.queued}"
        free = 0
        used: dict[int, int] = {}
        for name, agent in agents:
            held = Counter(slot for slots in agent.slots_by_allocation.values() for slot in slots)
            for slot, count in held.items():
                jobs = {part.group for part in agent.parts.values() if slot in part.slots}
                most = max(job_queue_of(context).group(job).row.slot_sharers for job in jobs)
                assert count <= most, f"{name} gives slot {slot} away too often: {agent}"
                assert len(jobs) == 1, f"{name} gives slot {slot} to several jobs: {agent}"
            assert set(held) <= set(agent.slots), f"{name} gives away slots it lacks: {agent}"
            places += [name for name, part in agent.parts.items() if part.rank == 0]
            for group in {part.group for part in agent.parts.values()}:
                used[group] = used.get(group, 0) + agent.job_slots(group).held
            free += len(agent.free_slots)
        assert len(set(places)) == len(places), f"an allocation has two places: {places}"
        assert 0 <= free == state.free, f"{free} slots are free, not {state.free}"
        assert state.running == sum(agent.first_rank_count for _, agent in agents)
        assert state.slots == sum(agent.usable_count for _, agent in agents)
        for group, slots in used.items():
            counted = job_queue_of(context).group(group).held
            assert counted == slots, f"group {group} has {slots}, not {counted}"

    def _check_agents(self) -> None:
        """Check that no node of a trial's current allocation is on two agents that are not lost.

        The agent and the slots must equal the trial's own record. Raises AssertionError.
        """
        live: dict[tuple[int, int], str] = {}
        for agent in self.actor_states("agent"):
            for desired in agent.desired:
                trial = self._states.get(addresses.trial(desired.trial_id))
                if agent.lost or trial is None or trial.allocation is None:
                    continue
                if trial.epoch == desired.epoch:
                    node = desired.trial_id, desired.node_rank
                    other = live.setdefault(node, agent.agent)
                    assert other == agent.agent, f"{desired} runs on {other} and {agent.agent}"
                    assert trial.allocation.places[desired.node_rank :][:1] in (
                        (),
                        (Place(agent.agent, desired.slots),),
                    ), f"{desired} is on {agent.agent}, not as {trial.allocation} says"

    def _check_experiment(self, address: str, state: ExperimentState) -> None:
        """Check that an experiment's counts of trials equal the counts of the trial summaries.

        An ended experiment has no open trials, and no trial has two numbers. Raises AssertionError.
        """
        summaries: list[TrialSummary] = []
        for number in range((state.trials - 1) // 64 + 1 if state.trials else 0):
            part = self.part(address, f"trials/{number}")
            assert isinstance(part, Summaries)
            summaries += part.trials
        open_count = sum(summary.is_open(state.run_generation) for summary in summaries)
        assert len(summaries) == state.trials, address
        assert 0 <= open_count == state.trials_open, f"{open_count} are open, not {state}"
        ids = [summary.trial_id for summary in summaries]
        assert len(set(ids)) == len(ids), f"a trial has two numbers: {ids}"
        if state.status.is_final:
            assert not open_count, f"{address} is {state.status} with {open_count} open trials"

    def _reader(self, address: str) -> "_CheckerReader":
        return _CheckerReader(self, address)


def _check_replacement(put: Put) -> None:
    """Check that no phase of an ended replacement is negative, and that the phases add up.

    Raises AssertionError.
    """
    record = decode_replacement(put.body)
    assert min(record.phases.values()) >= 0, f"{put.key} has a negative phase: {record.phases}"
    total_ms = record.ended_ms - record.begun_ms
    assert sum(record.phases.values()) == total_ms, f"{put.key} is not the sum of its phases"


def _check_run_generation(address: str, known: Any, after: Any) -> None:
    """Check the status and run generation of an actor; `known` is the former state.

    The actor is an experiment or a trial. A run generation begins when a user continues an ended
    experiment. Raises AssertionError if a rule is broken:

    - The run generation never decreases.
    - The run generation increases only if the known status is final and no deletion has begun.
    - In a run generation, a final status changes only to a status of the deletion.
    - A deleted actor stays deleted.
    """
    assert after.run_generation >= known.run_generation, (
        f"{address} goes back to run generation {after.run_generation}"
    )
    if after.run_generation > known.run_generation:
        assert known.status.is_final, f"{address} goes on before it has ended"
        assert not known.status.is_deleting, f"{address} goes on while it is deleted"
    elif known.status.is_final and not after.status.is_deleting:
        assert after.status is known.status, f"{address} leaves {known.status}"
    if known.status is Status.DELETED:
        assert after.status is Status.DELETED, f"{address} comes back"


def _check_log_policies(address: str, known: TrialState, after: TrialState) -> None:
    """Check the effects of log policies on a trial. Raises AssertionError if a rule is broken.

    - New slots are on no agent that the former state excludes.
    - A failure after canceled retries is not followed by another run, except in a new run
      generation.
    """
    held = {*known.allocation.agents} if known.allocation else set()
    agents = {*after.allocation.agents} if after.allocation else set()
    if not held or after.epoch > known.epoch:
        excluded = agents & {*known.excluded_agents}
        assert not excluded, f"{address} runs on the excluded {excluded}"
    if known.retries_canceled and after.run_generation == known.run_generation:
        assert after.status.is_final or after.restarts == known.restarts, f"{address} is retried"


def _check_use(address: str, known: TrialState, after: TrialState) -> None:
    """Check the measured use of a trial. Raises AssertionError if a rule is broken.

    - The use of ended allocations never decreases, and grows only with the end of an allocation.
    - No part of the use exceeds the measured time.
    - A run that was ended for low use is not followed by another run, except after a loss or in a
      new run generation.
    """
    before, use = known.use or NO_USE, after.use or NO_USE
    assert use.measured_ms >= before.measured_ms, f"{address} forgets its use"
    parts = (use.busy_ms, use.low_ms, use.memory_ms)
    assert all(part <= use.measured_ms for part in parts), f"{address} has the impossible {use}"
    held, now_held = known.allocation, after.allocation
    if use != before:
        assert held is not None, f"{address} counts the use of no allocation"
        is_ended = now_held is None or after.epoch > known.epoch
        assert is_ended, f"{address} counts the use of a running allocation"
    if held is None or held.low_use is None or not held.low_use.end_reason:
        return
    if after.epoch > known.epoch and after.run_generation == known.run_generation:
        assert after.losses > known.losses, f"{address} runs again after its low use"


def _is_preempted(trial: TrialState | None) -> bool:
    """Return whether a trial's allocation must be preempted. False without an allocation."""
    allocation = None if trial is None else trial.allocation
    return allocation is not None and allocation.desired_state is DesiredState.PREEMPT


class _CheckerReader:
    def __init__(self, checker: StateChecker, address: str) -> None:
        self._checker = checker
        self._address = address

    def part(self, name: str) -> object | None:
        return self._checker.part(self._address, name)

    def row(self, partition: str, sort: str) -> ObservedRow:
        put = self._checker.rows.get(Key(partition, sort))
        return ObservedRow(put.revision, put.body) if put else ObservedRow(0, b"")


def _messages_of(mail: Put) -> list[list[Any]]:
    """Return the stored names and fields of the messages in a mail row."""
    messages: list[list[Any]] = parse_json(mail.body)["messages"]
    return messages


class CheckedTable(TableDecorator):
    """A state table that passes every successful commit to the checker, in order."""

    def __init__(self, table: StateTable, checker: StateChecker) -> None:
        super().__init__(table)
        self._checker = checker

    def commit(self, writes: Sequence[Write]) -> None:
        """Commit as StateTable describes, then check the new state.

        Raises InvariantBroken if an invariant is broken or the commit of an actor exceeds a limit
        of the table.
        """
        with self._checker.lock:
            try:
                self.table.commit(writes)
            except InvalidCommit as refused:
                if any(write.key.sort == HEAD for write in writes):
                    raise InvariantBroken(f"an actor's commit is refused: {refused}") from refused
                raise
            try:
                self._checker.apply_commit(writes)
            except AssertionError as broken:
                raise InvariantBroken(str(broken)) from broken
