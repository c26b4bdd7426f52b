"""The engine: loads an actor, folds the mail, commits the outcome, and advances the receivers of
new mail.

Several processes may advance an actor at the same time; the first commit wins. The loser stops: its
mail was stored before the winner's commit, and the winner reads the mailbox again after the commit.
The recovery pass finds mail that no process has folded (due_rows.py).
"""

import itertools
import logging
import random
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from control_plane.actors.step import CommandRefused
from control_plane.engine.actor_types import EncodedMessage, actor_type_at, encode_message_for
from control_plane.engine.delivery import MailOnly, fold_deliveries, join_commits
from control_plane.engine.fold import (
    DRAINED_RECEIVERS_MAX,
    MAIL_ONLY,
    ActorSnapshot,
    Commit,
    Fold,
    Origin,
    build_commit,
    build_drain_commit,
    decode_spill,
    spill_key,
)
from control_plane.engine.fold_steps import (
    apply_fallback,
    apply_message,
    finish_fold,
    fold_mail,
)
from control_plane.engine.head import HEAD, PARTS
from control_plane.engine.mailbox import (
    FIRST,
    MAIL,
    MAIL_END,
    RECOVERY_DELAY_MS,
    MailboxRow,
    dead_letter_write,
    mail_key,
    mail_write,
    next_clock,
)
from control_plane.engine.outputs import is_outbox_part
from control_plane.engine.reader import (
    ActorCache,
    FoldReader,
    LoadedActor,
    TornRead,
    decode_snapshot,
    load_actor,
)
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import (
    GET_MAX,
    Conflict,
    InvalidCommit,
    Key,
    Row,
    StateTable,
    TableError,
    Write,
)

log = logging.getLogger(__name__)

LOAD_TRIES_MAX = 20
COMMAND_TRIES_MAX = 60
BUDGET_MS = 10_000
# The time that a command spends on sent messages. The recovery pass handles the rest.
COMMAND_BUDGET_MS = 3_000


def _pause_randomly() -> None:
    time.sleep(random.uniform(0, 0.02))


@dataclass(frozen=True, slots=True)
class EngineTiming:
    """The clock and the pause of an engine, which tests replace."""

    monotonic_seconds: Callable[[], float] = time.monotonic
    """Returns the time in seconds of a clock that never goes back."""
    pause_after_conflict: Callable[[], None] = _pause_randomly
    """Waits before a command is tried again after another process committed first."""


class Engine:
    """Advances actors on a state table. Threads may share an engine.

    `clock` returns epoch ms. `on_commit` is called with the address of each committed actor.
    `on_row` is called with the key of each row that an actor wrote outside its own rows.
    """

    def __init__(
        self, table: StateTable, clock: Callable[[], int], timing: EngineTiming | None = None
    ) -> None:
        self.table = table
        self.clock = clock
        self._timing = timing or EngineTiming()
        self._cache = ActorCache()
        self._post_numbers = itertools.count(1)
        self.on_commit: Callable[[str], None] = lambda address: None
        self.on_row: Callable[[Key], None] = lambda key: None

    def advance_until_idle(self, addresses: Iterable[str], *, budget_ms: int = BUDGET_MS) -> None:
        """Advance actors, then the receivers of new mail, until no mail or no time is left.

        A commit that was started in time is completed. Raises TableError.
        """
        pending = deque(dict.fromkeys(addresses))
        seconds = self.seconds
        until = seconds() + budget_ms / 1000
        while pending and (left_seconds := until - seconds()) > 0:
            for receiver in self.advance(pending.popleft(), budget_ms=left_seconds * 1000):
                if receiver not in pending:
                    pending.append(receiver)

    def advance(
        self, address: str, *, timers: bool = False, budget_ms: float = BUDGET_MS
    ) -> tuple[str, ...]:
        """Fold the actor's mail, and with `timers` due timers, until nothing or no time is left.

        A spilled outbox is sent first. Stop without an error if another process advances the actor.
        Mail that cannot be folded is left for the recovery pass. Return the addresses of the
        actors that have new mail. Raises TableError.
        """
        receivers: dict[str, None] = {}
        skipped: set[str] = set()
        seconds = self.seconds
        until = seconds() + budget_ms / 1000
        while seconds() < until:
            written_to = self._advance_once(address, timers, skipped)
            if written_to is None:
                break
            receivers.update(dict.fromkeys(written_to))
            if not timers and self._is_idle(address):
                break
        return tuple(receivers)

    def seconds(self) -> float:
        """Return the time in seconds of the engine's monotonic clock, for measuring durations."""
        return self._timing.monotonic_seconds()

    def has_mail(self, address: str) -> bool:
        """Return whether the actor has mail. Reads one row."""
        return bool(self.table.query(address, MAIL, MAIL_END, limit=1).rows)

    def read_state(self, address: str) -> Any:
        """Read the actor's state. Return None if the actor does not exist.

        The state does not include mail that is not folded yet.
        """
        row = self.table.get(Key(address, HEAD))
        return None if row is None else self._decode_head_row(address, row).state

    def read_states(self, addresses: Sequence[str]) -> list[Any]:
        """Read the states of actors, in the order of `addresses`. None stands for no actor."""
        return self.read_states_and_rows(addresses, ())[0]

    def read_states_and_rows(
        self, addresses: Sequence[str], keys: Sequence[Key]
    ) -> tuple[list[Any], list[Row | None]]:
        """Read the states of actors and other rows in common batches.

        Return the states in the order of `addresses` and the rows in the order of `keys`. None
        stands for a missing actor or row. The rows may be from different moments.
        """
        rows = self._read_rows([*(Key(address, HEAD) for address in addresses), *keys])
        states = [
            None if row is None else self._decode_head_row(address, row).state
            for address, row in zip(addresses, rows, strict=False)
        ]
        return states, rows[len(addresses) :]

    def _decode_head_row(self, address: str, row: Row) -> ActorSnapshot:
        """Decode a head row into an actor. Cache the actor unless a later revision is cached."""
        snapshot = decode_snapshot(self._cache, address, row)[0]
        self._cache.put_if_newer(snapshot)
        return snapshot

    def read_part(self, address: str, name: str) -> Any:
        """Read and decode a part of the actor. Return None if the part does not exist.

        The part may be newer than a state that was read earlier.
        """
        row = self.table.get(Key(address, PARTS + name))
        return None if row is None else actor_type_at(address).decode_part(name, row.body)

    def read_parts(self, places: Sequence[tuple[str, str]]) -> list[Any]:
        """Read and decode parts of several actors. None stands for a missing part.

        Args:
            places: the address of the actor and the name of the part, for each part.
        """
        rows = self._read_rows([Key(address, PARTS + name) for address, name in places])
        return [
            None if row is None else actor_type_at(address).decode_part(name, row.body)
            for (address, name), row in zip(places, rows, strict=True)
        ]

    def read_part_rows(self, address: str, family: str) -> list[Row]:
        """Read the rows of the part named `family` and of all parts below `family/`."""
        return [*read_rows(self.table, address, f"{PARTS}{family}", f"{PARTS}{family}/~")]

    def _read_rows(self, keys: Sequence[Key]) -> list[Row | None]:
        """Read rows in batches of GET_MAX, in the order of `keys`. None stands for no row."""
        rows: list[Row | None] = []
        for start in range(0, len(keys), GET_MAX):
            rows += self.table.get_many(keys[start : start + GET_MAX])
        return rows

    def execute_command(
        self,
        address: str,
        message: object,
        *,
        by: str = "",
        extra_writes: Callable[[object], tuple[Write, ...]] = lambda reply: (),
    ) -> object:
        """Fold the actor's mail and a user's command in a single commit; return the actor's reply.

        After the commit, advance the receivers of new mail for at most COMMAND_BUDGET_MS.

        Raises CommandRefused if the actor refuses the command, does not exist, would become too
        large, or is too busy. Raises Conflict if the condition of an extra write does not hold.

        Args:
            by: the user, for the journal.
            extra_writes: returns further writes for the same commit, given the reply.
        """
        origin = Origin((encode_message_for(address, message),), by)
        extra_keys: set[Key] = set()

        def record_extra_writes(reply: object) -> tuple[Write, ...]:
            writes = extra_writes(reply)
            extra_keys.update(write.key for write in writes)
            return writes

        mail_only = MailOnly()
        for _ in range(COMMAND_TRIES_MAX):
            try:
                outcome = self._try_command(
                    address, message, origin, record_extra_writes, mail_only
                )
            except Conflict as conflict:
                if conflict.key in extra_keys:
                    raise
                mail_only.receivers.add(conflict.key.partition)
                self._timing.pause_after_conflict()
                continue
            if outcome is not None:
                return outcome[0]
        raise CommandRefused("unavailable", f"{address} is too busy; try again")

    def post_message(self, address: str, message: object, *, sender: str) -> None:
        """Mail a message to an actor and advance the actor.

        Args:
            sender: the part of the cluster that sends the message, which is not an actor.
        """
        now_ms = self.clock()
        clock = next_clock(0, now_ms)
        encoded = [encode_message_for(address, message)]
        key = mail_key(address, clock, f"{sender}#{next(self._post_numbers)}")
        self.table.commit(
            (mail_write(key, sender, FIRST, clock, encoded, now_ms + RECOVERY_DELAY_MS),)
        )
        self.advance_until_idle((address,))

    def dead_letter_mail(self, mail: MailboxRow) -> tuple[str, ...]:
        """Make a dead letter of the first message of a mailbox row that no attempt could fold.

        The actor applies its fallback for the message. The message is moved to a row of its own,
        and the other messages stay in the mailbox. Return the addresses of the actors to advance:
        this actor and the receivers of new mail.
        """
        address = mail.key.partition
        now_ms = self.clock()
        actor = self._load_actor(address, None)
        reader = FoldReader(self.table, actor)
        fold = reader.fold
        first = mail.first_messages(1)
        for name, fields in first.messages:
            apply_fallback(reader, name, fields, now_ms)
        fold.consume(first)
        commit = build_commit(
            actor.snapshot, fold, now_ms, Origin(is_dead_letter=True), extra_write_count=1
        )
        letter = dead_letter_write(first)
        self._commit_fold(
            Commit((*commit.writes, letter), commit.snapshot, commit.receivers), fold, actor
        )
        return (address, *commit.receivers)

    def _is_idle(self, address: str) -> bool:
        """Return whether the actor is cached and has neither mail nor a spilled outbox."""
        latest = self._cache.get_latest(address)
        may_spill = latest is None or latest.header.spill is not None
        return not may_spill and not self.has_mail(address)

    def _advance_once(
        self, address: str, timers: bool, skipped: set[str]
    ) -> tuple[str, ...] | None:
        """Make a commit for the actor and return the addresses of the receivers of new mail.

        Return None if the actor has nothing to fold, or if another process advances it.

        Args:
            skipped: the sort keys of rows that cannot be folded. Further such rows are added.
        """
        messages_max = sys.maxsize
        mail_only = MailOnly()
        for _ in range(LOAD_TRIES_MAX):
            now_ms = self.clock()
            try:
                actor = load_actor(self.table, self._cache, address, now_ms if timers else None)
                if actor.snapshot.header.spill is not None:
                    return self._drain_outbox(actor, now_ms)
                reader = FoldReader(self.table, actor)
                fold_mail(reader, actor.mail, now_ms, skipped, messages_max)
                fold = reader.fold
                if not fold.consumed:
                    return None
                finish_fold(reader, now_ms)
                fold = reader.fold
                receivers = self._commit_with_deliveries(actor, fold, now_ms, mail_only)
            except TornRead:
                continue
            except InvalidCommit as refused:
                if not mail_only.everyone:
                    mail_only.everyone = True
                    continue
                # The effects of a few messages may be too large for a commit: fold half of the
                # messages.
                messages_max = fold.message_count() // 2
                if not messages_max:
                    log.error("%s cannot fold %s: %s", address, fold.consumed[0].key.sort, refused)
                    skipped.add(fold.consumed[0].key.sort)
                    messages_max = sys.maxsize
                continue
            except Conflict as conflict:
                if _is_actor_row(conflict.key, address):
                    return None
                mail_only.receivers.add(conflict.key.partition)
                continue
            return receivers
        return None

    def _try_command(
        self,
        address: str,
        message: object,
        origin: Origin,
        extra_writes: Callable[[object], tuple[Write, ...]],
        mail_only: MailOnly,
    ) -> tuple[object] | None:
        """Try once to commit the actor's mail and a command. Return None to try again.

        After the commit, advance the actor and the receivers, and return a tuple with the reply. If
        the commit would be too large, change `mail_only` or fold the mail first, and return None.
        Raises Conflict if another process committed first, and CommandRefused.
        """
        now_ms = self.clock()
        try:
            actor = load_actor(self.table, self._cache, address, None)
            reader = FoldReader(self.table, actor)
            fold_mail(reader, actor.mail, now_ms, set())
            has_mail = bool(reader.fold.consumed)
            apply_message(reader, message, now_ms)
            if reader.fold.state is None:
                raise CommandRefused("not_found", f"there is no {address.replace('#', ' ')}")
            finish_fold(reader, now_ms)
        except TornRead:
            return None
        fold = reader.fold
        extra = extra_writes(fold.reply)
        try:
            receivers = self._commit_with_deliveries(actor, fold, now_ms, mail_only, origin, extra)
        except InvalidCommit as refused:
            if not mail_only.everyone:
                mail_only.everyone = True
                return None
            if not has_mail:
                raise CommandRefused(
                    "too_large", f"{address} would be too large: {refused}"
                ) from None
            # The mail and the command do not fit into a commit together: fold the mail first.
            self.advance_until_idle((address,))
            return None
        try:
            self.advance_until_idle((address, *receivers), budget_ms=COMMAND_BUDGET_MS)
        except TableError as error:
            # The command is committed. The recovery pass finds the mail that the command sent.
            log.warning(
                "the consequences of a command to %s are left to a later pass: %s", address, error
            )
        return (fold.reply,)

    def _drain_outbox(self, actor: LoadedActor, now_ms: int) -> tuple[str, ...]:
        """Mail the next DRAINED_RECEIVERS_MAX entries of the spilled outbox. Return the receivers.

        A part without further entries is deleted. The actor must have a spilled outbox. Raises
        TornRead if another process has drained the outbox since the actor was loaded.
        """
        snapshot = actor.snapshot
        spill = snapshot.header.spill
        assert spill is not None
        row = self.table.get(spill_key(snapshot.address, spill.first))
        if row is None or row.revision > snapshot.revision:
            raise TornRead
        spilled = decode_spill(row.body)
        end = spill.offset + DRAINED_RECEIVERS_MAX
        entries: list[tuple[str, list[EncodedMessage]]] = [
            (
                to,
                [
                    encode_message_for(to, actor_type_at(to).decode_message(n, f))
                    for n, f in messages
                ],
            )
            for to, messages in spilled[spill.offset : end]
        ]
        commit = build_drain_commit(snapshot, entries, end < len(spilled), now_ms)
        self._commit_fold(commit, Fold(snapshot.state), actor)
        return commit.receivers

    def _commit_with_deliveries(
        self,
        actor: LoadedActor,
        fold: Fold,
        now_ms: int,
        mail_only: MailOnly,
        origin: Origin = MAIL_ONLY,
        extra: tuple[Write, ...] = (),
    ) -> tuple[str, ...]:
        """Commit a fold together with the folds of the receivers that accept deliveries.

        Return the addresses of the actors that have new mail. Raises Conflict and InvalidCommit.
        """
        before = actor.snapshot
        deliveries = fold_deliveries(
            self.table, self._cache, before, fold, now_ms, mail_only, len(extra)
        )
        clocks = {item.address: item.clock for item in deliveries}
        own = build_commit(before, fold, now_ms, origin, len(extra), clocks)
        commit, receivers_after = join_commits(own, deliveries, now_ms)
        writes = (*commit.writes, *extra)
        self._commit_fold(Commit(writes, commit.snapshot, commit.receivers), fold, actor)
        for delivery, after in zip(deliveries, receivers_after, strict=True):
            self._cache_and_notify(after, delivery.fold, delivery.actor)
        return commit.receivers

    def _commit_fold(self, commit: Commit, fold: Fold, actor: LoadedActor) -> None:
        self.table.commit(commit.writes)
        self._cache_and_notify(commit.snapshot, fold, actor)

    def _cache_and_notify(self, after: ActorSnapshot, fold: Fold, actor: LoadedActor) -> None:
        """Cache an actor after a commit, and call `on_commit` and `on_row`."""
        if after.revision:
            parts = {name: value for name, value in fold.parts.items() if not is_outbox_part(name)}
            self._cache.put(after, {**actor.parts, **parts})
        self.on_commit(after.address)
        for key, (_, body) in fold.row_writes.items():
            if body is not None:
                self.on_row(key)

    def _load_actor(self, address: str, timers_until_ms: int | None) -> LoadedActor:
        """Load an actor, repeating torn reads. Raises CommandRefused after LOAD_TRIES_MAX reads."""
        for _ in range(LOAD_TRIES_MAX):
            try:
                return load_actor(self.table, self._cache, address, timers_until_ms)
            except TornRead:
                continue
        raise CommandRefused("unavailable", f"{address} changes too fast to be read")


def _is_actor_row(key: Key, address: str) -> bool:
    """Return whether the key belongs to a row of the actor.

    A conflict on such a key means that another process has advanced the actor.
    """
    return key.partition == address
