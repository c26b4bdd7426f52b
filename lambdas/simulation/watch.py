"""What holds after every commit, checked on a copy of the table that the commits build."""

from collections.abc import Callable, Sequence
from threading import RLock
from typing import Any
from zlib import crc32

from control_plane.actors.agent import AgentState
from control_plane.actors.experiment_state import ExperimentState
from control_plane.actors.experiment_summaries import Summaries, TrialSummary
from control_plane.actors.pool import PoolState, agents_of, waiting_in
from control_plane.actors.records import Place, Status
from control_plane.actors.step import RowSeen, Turn
from control_plane.actors.trial_state import TrialState, Wish
from control_plane.dispatch.head import HEAD, PARTS, decode_head
from control_plane.dispatch.journal import read_row
from control_plane.dispatch.kinds import KINDS, kind_at
from control_plane.dispatch.mailbox import MAIL, TIMERS
from control_plane.state.faults import TableDecorator
from control_plane.state.table import CommitRefused, Delete, Key, Put, StateTable, Write


class InvariantBroken(BaseException):
    """What must always hold does not. No handler of Exception in the engine hides it."""


class Shadow:
    """Every row as the commits have left it, and the actors decoded from them.

    Each commit is checked as it comes; one shadow serves all openings of a file. With `lenient`
    nothing is checked.
    """

    def __init__(self, *, lenient: bool = False) -> None:
        self._lenient = lenient
        self.lock = RLock()
        self.rows: dict[Key, Put] = {}
        self.commits = 0
        self.digest = 0
        self.preemptions = 0
        self.draining: list[int] = []
        self.on_mail: Callable[[str], None] = lambda address: None
        self._mail: set[Key] = set()
        self._states: dict[str, Any] = {}
        self._parts: dict[Key, object] = {}
        self._heard: dict[tuple[str, str], int] = {}

    def state(self, address: str) -> Any:
        """An actor's state, or None."""
        return self._states.get(address)

    def states(self, kind: str) -> list[Any]:
        """The states of every actor of a kind."""
        return [state for name, state in self._states.items() if name.startswith(f"{kind}#")]

    def mail(self) -> list[Key]:
        """Messages and timers that nobody has folded yet."""
        return sorted(self._mail)

    def folded(self, address: str) -> list[tuple[str, dict[str, Any]]]:
        """The messages an actor has folded, in order, from its journal."""
        found: list[tuple[str, dict[str, Any]]] = []
        for key in sorted(key for key in self.rows if key.partition == address):
            if key.sort.startswith("Z#0"):
                entry = read_row(self.rows[key].body)
                for mail in entry["in"]:
                    found += [(name, fields) for name, fields in mail["messages"]]
                found += [(name, fields) for name, fields in entry["command"]]
        return found

    def part(self, address: str, name: str) -> object | None:
        """A decoded part, or None."""
        key = Key(address, PARTS + name)
        if key not in self.rows:
            return None
        if key not in self._parts:
            self._parts[key] = kind_at(address).decode_part(name, self.rows[key].body)
        return self._parts[key]

    def apply(self, writes: Sequence[Write]) -> None:
        """Takes a commit that went through, and checks what must hold after it."""
        self.commits += 1
        written = "".join([f"{write.key.partition}/{write.key.sort};" for write in writes])
        self.digest = crc32(written.encode(), self.digest)
        if any(write.key.sort.startswith(f"{PARTS}outbox/") for write in writes):
            self.draining.append(self.commits)
        for write in writes:
            if isinstance(write, Put):
                self._put(write)
            elif isinstance(write, Delete):
                self.rows.pop(write.key, None)
                self._mail.discard(write.key)
                self._parts.pop(write.key, None)
        for address in {write.key.partition for write in writes}:
            if not self._lenient:
                self._check(address)

    def _put(self, put: Put) -> None:
        before = self.rows.get(put.key)
        self.rows[put.key] = put
        self._parts.pop(put.key, None)
        address = put.key.partition
        if put.key.sort.startswith((MAIL, TIMERS)):
            self._mail.add(put.key)
            self.on_mail(address)
        if put.key.sort.startswith("Z#0") and not self._lenient:
            self._check_order(address, put)
        if put.key.sort != HEAD or address.partition("#")[0] not in KINDS:
            return
        after = kind_at(address).decode_state(decode_head(put.body)[1])
        if not self._lenient:
            self._check_change(address, before, put, after)
        if isinstance(after, TrialState) and _is_preempted(after):
            self.preemptions += not _is_preempted(self._states.get(address))
        self._states[address] = after

    def _check_order(self, address: str, journal: Put) -> None:
        """Each message is folded once, and after all that its sender had sent before."""
        for mail in read_row(journal.body)["in"]:
            sender, clock = mail["from"], mail["clock"]
            if sender.partition("#")[0] not in KINDS or sender == address:
                # A timer is older than what it comes after, a post has no sender to be ordered by.
                continue
            heard = self._heard.get((address, sender), -1)
            assert clock > heard, f"{address} folds {clock} of {sender} after {heard}"
            self._heard[address, sender] = clock

    def _check_change(self, address: str, before: Put | None, put: Put, after: Any) -> None:
        """Revisions form a chain, final is final but for a deletion and a later life, and a trial's
        counters only grow.
        """
        assert put.revision == (before.revision + 1 if before else 1), f"{address} skips a revision"
        known = self._states.get(address)
        if isinstance(known, ExperimentState | TrialState):
            _check_life(address, known, after)
        if isinstance(known, TrialState):
            assert after.epoch >= known.epoch, f"{address} goes back to epoch {after.epoch}"
            goes_on = after.life > known.life
            assert goes_on or after.restarts >= known.restarts, f"{address} forgets a restart"
            if not known.status.final and known.checkpoint is not None:
                kept = after.checkpoint
                older = kept is None or kept.steps_completed < known.checkpoint.steps_completed
                assert not older, f"{address} forgets its newest checkpoint"

    def _check(self, address: str) -> None:
        state = self._states.get(address)
        match state:
            case PoolState():
                self._check_pool(address, state)
            case ExperimentState():
                self._check_experiment(address, state)
            case AgentState():
                self._check_agents()

    def _check_pool(self, address: str, state: PoolState) -> None:
        """Slots are held by one allocation each and add up; an allocation has one place."""
        turn = Turn(address, 0, self._reader(address))
        agents = agents_of(turn).items()
        places = [request.allocation for request in waiting_in(turn).items()]
        assert len(places) == state.queued, f"{places} are queued, not {state.queued}"
        free = 0
        used: dict[int, int] = {}
        for name, agent in agents:
            held = [slot for slots in agent.running.values() for slot in slots]
            assert len(set(held)) == len(held), f"{name} gives a slot away twice: {agent}"
            assert set(held) <= set(agent.slots), f"{name} gives away slots it lacks: {agent}"
            places += [name for name, part in agent.parts.items() if part.rank == 0]
            for part in agent.parts.values():
                used[part.group] = used.get(part.group, 0) + len(part.slots)
            free += len(agent.free)
        assert len(set(places)) == len(places), f"an allocation has two places: {places}"
        assert 0 <= free == state.free, f"{free} slots are free, not {state.free}"
        assert state.running == sum(agent.leads for _, agent in agents)
        assert state.slots == sum(agent.total for _, agent in agents)
        for group, slots in used.items():
            counted = waiting_in(turn).group(group).held
            assert counted == slots, f"group {group} has {slots}, not {counted}"

    def _check_agents(self) -> None:
        """No trial has two live allocations with a valid epoch, no node of one two places."""
        live: dict[tuple[int, int], str] = {}
        for agent in self.states("agent"):
            for desired in agent.desired:
                trial = self._states.get(f"trial#{desired.trial_id}")
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
        """What the head counts is what the summaries say."""
        summaries: list[TrialSummary] = []
        for number in range((state.trials - 1) // 64 + 1 if state.trials else 0):
            part = self.part(address, f"trials/{number}")
            assert isinstance(part, Summaries)
            summaries += part.trials
        still_open = sum(summary.is_open(state.life) for summary in summaries)
        assert len(summaries) == state.trials, address
        assert 0 <= still_open == state.trials_open, f"{still_open} are open, not {state}"
        ids = [summary.trial_id for summary in summaries]
        assert len(set(ids)) == len(ids), f"a trial has two numbers: {ids}"
        if state.status.final:
            assert not still_open, f"{address} is {state.status} with {still_open} open trials"

    def _reader(self, address: str) -> "_ShadowReader":
        return _ShadowReader(self, address)


def _check_life(address: str, known: Any, after: Any) -> None:
    """Final is final, but for an experiment that goes on or goes for good, and with its trials."""
    assert after.life >= known.life, f"{address} goes back to life {after.life}"
    if after.life > known.life:
        assert known.status.final, f"{address} begins a life before the last one ended"
        assert not known.status.deleting, f"{address} goes on while it is deleted"
    elif known.status.final and not after.status.deleting:
        assert after.status is known.status, f"{address} leaves {known.status}"
    if known.status is Status.DELETED:
        assert after.status is Status.DELETED, f"{address} comes back"


def _is_preempted(trial: TrialState | None) -> bool:
    allocation = None if trial is None else trial.allocation
    return allocation is not None and allocation.wish is Wish.PREEMPT


class _ShadowReader:
    def __init__(self, shadow: Shadow, address: str) -> None:
        self._shadow = shadow
        self._address = address

    def part(self, name: str) -> object | None:
        return self._shadow.part(self._address, name)

    def row(self, partition: str, sort: str) -> RowSeen:
        put = self._shadow.rows.get(Key(partition, sort))
        return RowSeen(put.revision, put.body) if put else RowSeen(0, b"")


class WatchedTable(TableDecorator):
    """Hands every commit that went through to the shadow, in the order of the commits."""

    def __init__(self, table: StateTable, shadow: Shadow) -> None:
        super().__init__(table)
        self._shadow = shadow

    def commit(self, writes: Sequence[Write]) -> None:
        """See StateTable; raises InvariantBroken."""
        with self._shadow.lock:
            try:
                self.table.commit(writes)
            except CommitRefused as refused:
                if any(write.key.sort == HEAD for write in writes):
                    raise InvariantBroken(f"an actor's commit is refused: {refused}") from refused
                raise
            try:
                self._shadow.apply(writes)
            except AssertionError as broken:
                raise InvariantBroken(str(broken)) from broken
