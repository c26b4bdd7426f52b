"""Commits to the table, and the notifications of a commit."""

from collections.abc import Callable

from control_plane.engine.actor_types import EncodedMessage, actor_type_at, encode_message_for
from control_plane.engine.commits import (
    MAIL_ONLY,
    Commit,
    Origin,
    build_commit,
    build_drain_commit,
)
from control_plane.engine.committed_actors import CommittedActors
from control_plane.engine.delivery import MailOnly, fold_deliveries, join_commits
from control_plane.engine.fold import ActorSnapshot, Fold
from control_plane.engine.outputs import is_outbox_part
from control_plane.engine.reader import LoadedActor, TornRead
from control_plane.engine.spilled_outbox import DRAINED_RECEIVERS_MAX, decode_spill, spill_key
from control_plane.state.table import Key, StateTable, Write


class Committer(CommittedActors):
    """A committer of folds to a state table.

    `on_commit` is called after each commit with the address of each actor in the commit. `on_row`
    is called with the key of each row outside the actors that a step wrote; deleted rows do not
    count. Both do nothing unless the owner of the committer sets a function.
    """

    def __init__(self, table: StateTable) -> None:
        super().__init__(table)
        self.on_commit: Callable[[str], None] = lambda address: None
        self.on_row: Callable[[Key], None] = lambda key: None

    def _drain_outbox(self, actor: LoadedActor, now_ms: int) -> tuple[str, ...]:
        """Mail the next entries of the spilled outbox in a commit, at most DRAINED_RECEIVERS_MAX.
        Return the receivers.

        The spilled outbox has the messages of an earlier, full commit, and the actor must have one.
        A part without further entries is deleted. Raises TornRead or Conflict if another process
        has drained the outbox since the actor was loaded. Raises another TableError if a read or
        the commit fails, and KeyError or ValueError for a spilled message that can no longer be
        decoded.
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

        Then cache the actor and these receivers, and notify. Return the addresses of the actors
        that have new mail. Raises TableError, and nothing is written then: Conflict if a condition
        does not hold, InvalidCommit if the commit is too large. After Unavailable, the outcome is
        unknown.

        Args:
            mail_only: the receivers that get mail instead of a delivery.
            origin: the user's command of the fold, if any.
            extra: further writes of the caller for the same commit.
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
        """Commit the writes of a fold to the table, then cache the actor and notify.

        Raises Conflict if a condition does not hold, InvalidCommit if the commit is too large, and
        Unavailable if the outcome is unknown. The cache is unchanged then.
        """
        self.table.commit(commit.writes)
        self._cache_and_notify(commit.snapshot, fold, actor)

    def _cache_and_notify(self, after: ActorSnapshot, fold: Fold, actor: LoadedActor) -> None:
        """Cache an actor with parts after a commit, and call `on_commit` and `on_row`.

        A missing actor is not cached.

        Args:
            after: the actor after the commit.
            fold: the fold that was committed.
            actor: the actor as it was loaded, with the parts that were read.
        """
        if after.revision:
            parts = {name: value for name, value in fold.parts.items() if not is_outbox_part(name)}
            self._cache.put(after, {**actor.parts, **parts})
        self.on_commit(after.address)
        for key, (_, body) in fold.row_writes.items():
            if body is not None:
                self.on_row(key)
