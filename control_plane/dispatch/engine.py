"""The engine: loads an actor, folds its mail, commits the outcome once, and goes on with whom it
wrote to.

Whoever commits first has won; a loser leaves, because the winner looks at the mailbox again after
its commit and the loser's mail was there before it. What nobody follows is found by the due
index; see due.py.
"""

import itertools
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from control_plane.actors.step import Refused
from control_plane.dispatch.fold import (
    DRAINED_MAX,
    Commit,
    Fold,
    Origin,
    Snapshot,
    commit_of,
    decode_spill,
    drain_of,
    spill_key,
)
from control_plane.dispatch.head import HEAD, PARTS
from control_plane.dispatch.kinds import Encoded, encode_for, kind_at
from control_plane.dispatch.mailbox import (
    BACKSTOP_MS,
    FIRST,
    MAIL,
    MAIL_END,
    Mail,
    mail_key,
    next_clock,
    put_mail,
)
from control_plane.dispatch.reader import Cache, PartReader, Reading, Torn, load, snapshot_of
from control_plane.dispatch.turns import bury, settle, take, take_named
from control_plane.state.table import (
    GET_MAX,
    Conflict,
    Expect,
    Key,
    Put,
    Row,
    StateTable,
    TableError,
    Write,
)

log = logging.getLogger(__name__)

READINGS_MAX = 20
COMMAND_TRIES_MAX = 60
BUDGET_MS = 10_000
# A row tried this often is folded on its own: it may be what brings the process down.
ALONE_FROM = 3


def _pause_a_little() -> None:
    time.sleep(random.uniform(0, 0.02))


@dataclass(frozen=True, slots=True)
class Pacing:
    """A clock that only goes forward, and how those who lost a race let the others go ahead."""

    seconds: Callable[[], float] = time.monotonic
    pause: Callable[[], None] = _pause_a_little


class Engine:
    """Advances actors on `table`. `clock` gives epoch ms. Safe to share between threads.

    `on_commit` hears of each actor that was committed, `on_row` of each row outside that it wrote.
    `pacing` is how it measures its budgets and waits after a conflict.
    """

    def __init__(
        self, table: StateTable, clock: Callable[[], int], pacing: Pacing | None = None
    ) -> None:
        self.table = table
        self.clock = clock
        self._pacing = pacing or Pacing()
        self._cache = Cache()
        self._posts = itertools.count(1)
        self.on_commit: Callable[[str], None] = lambda address: None
        self.on_row: Callable[[Key], None] = lambda key: None

    def follow(self, addresses: Iterable[str], *, budget_ms: int = BUDGET_MS) -> None:
        """Advances actors, then whom they wrote to, until nothing moves or the time is used up."""
        waiting = deque(dict.fromkeys(addresses))
        seconds = self._pacing.seconds
        until = seconds() + budget_ms / 1000
        while waiting and seconds() < until:
            for receiver in self.advance(waiting.popleft()):
                if receiver not in waiting:
                    waiting.append(receiver)

    def advance(self, address: str, *, timers: bool = False) -> tuple[str, ...]:
        """Folds the actor's mail, and its due timers if asked for, until there is none left.

        Returns the actors that have new mail. Mail that cannot be folded stays for the backstop.
        """
        receivers: dict[str, None] = {}
        skipped: set[str] = set()
        while True:
            done = self._round(address, timers, skipped)
            if done is None:
                return tuple(receivers)
            receivers.update(dict.fromkeys(done))
            if not timers and self._is_settled(address):
                return tuple(receivers)

    def has_mail(self, address: str) -> bool:
        """Whether messages wait for the actor: one small read."""
        return bool(self.table.query(address, MAIL, MAIL_END, limit=1).rows)

    def state(self, address: str) -> Any:
        """The actor's state as of now, or None. Mail it has not folded yet is not in it."""
        row = self.table.get(Key(address, HEAD))
        return None if row is None else self._read(address, row).state

    def states(self, addresses: Sequence[str]) -> list[Any]:
        """The same of many actors, in their order."""
        return self.read(addresses, ())[0]

    def read(
        self, addresses: Sequence[str], keys: Sequence[Key]
    ) -> tuple[list[Any], list[Row | None]]:
        """The states of actors, and rows beside them: together, but each as of its own moment."""
        asked = [*(Key(address, HEAD) for address in addresses), *keys]
        rows: list[Row | None] = []
        for start in range(0, len(asked), GET_MAX):
            rows += self.table.get_many(asked[start : start + GET_MAX])
        states = [
            None if row is None else self._read(address, row).state
            for address, row in zip(addresses, rows, strict=False)
        ]
        return states, rows[len(addresses) :]

    def _read(self, address: str, row: Row) -> Snapshot:
        snapshot = snapshot_of(self._cache, address, row)[0]
        self._cache.keep(snapshot)
        return snapshot

    def part(self, address: str, name: str) -> Any:
        """A part of the actor as of now, or None. It may be newer than a state read before."""
        row = self.table.get(Key(address, PARTS + name))
        return None if row is None else kind_at(address).decode_part(name, row.body)

    def command(
        self,
        address: str,
        message: object,
        *,
        by: str = "",
        beside: Callable[[object], tuple[Write, ...]] = lambda reply: (),
    ) -> object:
        """Folds the actor's mail and a user's command in one commit and returns its reply.

        `by` is the user, for the journal. `beside` are further writes of the same commit, given
        the reply. Raises Refused, and Conflict for a condition of `beside`.
        """
        origin = Origin((encode_for(address, message),), by)
        added: set[Key] = set()

        def noted(reply: object) -> tuple[Write, ...]:
            writes = beside(reply)
            added.update(write.key for write in writes)
            return writes

        for _ in range(COMMAND_TRIES_MAX):
            try:
                found = self._commanded(address, message, origin, noted)
            except Conflict as conflict:
                if conflict.key in added:
                    raise
                self._pacing.pause()
                continue
            if found is not None:
                return found[0]
        raise Refused("unavailable", f"{address} is too busy; try again")

    def post(self, address: str, message: object, *, sender: str) -> None:
        """Mails a message from outside any actor, and follows it. `sender` names who says so."""
        now_ms = self.clock()
        clock = next_clock(0, now_ms)
        encoded = [encode_for(address, message)]
        key = mail_key(address, clock, f"{sender}#{next(self._posts)}")
        self.table.commit((put_mail(key, sender, FIRST, clock, encoded, now_ms + BACKSTOP_MS),))
        self.follow((address,))

    def dead_letter(self, mail: Mail) -> tuple[str, ...]:
        """Takes a message out that no attempt could fold; its actor falls back to a state without
        it.
        """
        address = mail.key.partition
        now_ms = self.clock()
        receivers: list[str] = [address]
        reading = self._load(address, None)
        while reading.snapshot.header.spill is not None:
            receivers += self._drained(reading, now_ms)
            reading = self._load(address, None)
        reader = PartReader(self.table, reading)
        fold = reader.fold
        for name, fields in mail.messages:
            bury(reader, name, fields, now_ms)
        fold.consumed.append(mail)
        commit = commit_of(reading.snapshot, fold, now_ms, Origin(dead=True), beside=1)
        letter = Put(Key(address, f"D#{mail.key.sort}"), 1, mail.body, Expect.ANYTHING)
        self._commit(
            Commit((*commit.writes, letter), commit.after, commit.receivers), fold, reading
        )
        return (*receivers, *commit.receivers)

    def _is_settled(self, address: str) -> bool:
        """Whether neither mail nor a spilled outbox waits here; cheaper than to load the actor."""
        after = self._cache.latest(address)
        spills = after is None or after.header.spill is not None
        return not spills and not self.has_mail(address)

    def _round(self, address: str, timers: bool, skipped: set[str]) -> tuple[str, ...] | None:
        """One commit; None when there is nothing more to do here or somebody else does it."""
        for _ in range(READINGS_MAX):
            now_ms = self.clock()
            try:
                reading = load(self.table, self._cache, address, now_ms if timers else None)
                if reading.snapshot.header.spill is not None:
                    return self._drained(reading, now_ms)
                reader = self._folded(reading, now_ms, skipped)
                if not reader.fold.consumed:
                    return None
                settle(reader, now_ms)
                fold = reader.fold
                commit = commit_of(reading.snapshot, fold, now_ms)
                self._commit(commit, fold, reading)
            except Torn:
                continue
            except Conflict as conflict:
                if _is_ours(conflict.key, address):
                    return None
                continue
            return commit.receivers
        return None

    def _folded(self, reading: Reading, now_ms: int, skipped: set[str]) -> PartReader:
        """Folds as much of the mail as a commit takes, in order."""
        reader = PartReader(self.table, reading)
        stuck: set[str] = set()
        for mail in reading.mail:
            if mail.key.sort in skipped or mail.sender in stuck:
                stuck.add(mail.sender)
                continue
            alone = mail.attempts >= ALONE_FROM
            if alone and reader.fold.consumed:
                break
            before = reader.fold
            reader.fold = before.fork()
            try:
                for name, fields in mail.messages:
                    take_named(reader, name, fields, now_ms)
                reader.fold.consumed.append(mail)
            except Torn:
                raise
            except Exception:
                log.exception("%s cannot fold %s", reading.snapshot.address, mail.key.sort)
                reader.fold = before
                skipped.add(mail.key.sort)
                stuck.add(mail.sender)
                continue
            if before.consumed and reader.fold.is_full():
                reader.fold = before
                break
            if alone:
                break
        return reader

    def _commanded(
        self,
        address: str,
        message: object,
        origin: Origin,
        beside: Callable[[object], tuple[Write, ...]],
    ) -> tuple[object] | None:
        now_ms = self.clock()
        try:
            reading = load(self.table, self._cache, address, None)
            if reading.snapshot.header.spill is not None:
                self.follow(self._drained(reading, now_ms))
                return None
            reader = self._folded(reading, now_ms, set())
            take(reader, message, now_ms)
            if reader.fold.state is None:
                raise Refused("not_found", f"there is no {address.replace('#', ' ')}")
            settle(reader, now_ms)
        except Torn:
            return None
        fold = reader.fold
        extra = beside(fold.reply)
        commit = commit_of(reading.snapshot, fold, now_ms, origin, len(extra))
        writes = (*commit.writes, *extra)
        self._commit(Commit(writes, commit.after, commit.receivers), fold, reading)
        try:
            self.follow((address, *commit.receivers))
        except TableError as error:
            # The command is carried out; what it set off is found by the backstop.
            log.warning("nobody went on after a command to %s: %s", address, error)
        return (fold.reply,)

    def _drained(self, reading: Reading, now_ms: int) -> tuple[str, ...]:
        snapshot = reading.snapshot
        spill = snapshot.header.spill
        assert spill is not None
        row = self.table.get(spill_key(snapshot.address, spill.first))
        if row is None or row.revision > snapshot.revision:
            raise Torn
        kept = decode_spill(row.body)
        end = spill.offset + DRAINED_MAX
        entries: list[tuple[str, list[Encoded]]] = [
            (to, [encode_for(to, kind_at(to).decode_message(n, f)) for n, f in messages])
            for to, messages in kept[spill.offset : end]
        ]
        commit = drain_of(snapshot, entries, end < len(kept), now_ms)
        self._commit(commit, Fold(snapshot.state), reading)
        return commit.receivers

    def _commit(self, commit: Commit, fold: Fold, reading: Reading) -> None:
        self.table.commit(commit.writes)
        if commit.after.revision:
            parts = {name: value for name, value in fold.parts.items() if _cacheable(name)}
            self._cache.put(commit.after, {**reading.parts, **parts})
        self.on_commit(commit.after.address)
        for key, (_, body) in fold.rows.items():
            if body is not None:
                self.on_row(key)

    def _load(self, address: str, timers_until_ms: int | None) -> Reading:
        for _ in range(READINGS_MAX):
            try:
                return load(self.table, self._cache, address, timers_until_ms)
            except Torn:
                continue
        raise Refused("unavailable", f"{address} changes too fast to be read")


def _is_ours(key: Key, address: str) -> bool:
    """Whether the condition was on the actor itself, so that another engine has advanced it."""
    return key.partition == address


def _cacheable(name: str) -> bool:
    return not name.startswith("outbox/")
