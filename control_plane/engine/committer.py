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
    """Commits folds to a state table."""

    def __init__(self, table: StateTable) -> None:
        super().__init__(table)
        self.on_commit: Callable[[str], None] = lambda address: None
        self.on_row: Callable[[Key], None] = lambda key: None

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
