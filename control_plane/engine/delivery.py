"""Delivering messages in the commit that sends them, to actors that few others write to.

A message to a pool or an experiment is mail: many write to these, and one commit of theirs folds
what has come. A trial has news of its own only. It is created, or assigned its slots, by one
message, and a row of mail, its deletion and a commit for it cost more than what it does. So the
sender's commit folds it: the same step, the same journal entry, guarded by the revision of the
receiver's head. Whatever stands in the way (mail that waits there, another process that was faster,
a step that fails, a commit that is full) makes it mail again.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from control_plane.engine.actor_types import EncodedMessage, actor_type_at, parse_json
from control_plane.engine.fold import ActorSnapshot, Commit, Fold, build_commit
from control_plane.engine.fold_steps import apply_stored_message, finish_fold
from control_plane.engine.head import Header
from control_plane.engine.mailbox import delivered_mail, next_clock
from control_plane.engine.reader import ActorCache, FoldReader, LoadedActor, TornRead, load_actor
from control_plane.state.table import OPERATIONS_MAX, StateTable, TableError

log = logging.getLogger(__name__)


@dataclass
class MailOnly:
    """The receivers that an operation mails its messages to: some, or all of them."""

    receivers: set[str] = field(default_factory=set)
    everyone: bool = False


@dataclass(frozen=True, slots=True)
class Delivery:
    """A receiver and the fold of the messages that were sent to it at `clock`."""

    actor: LoadedActor
    fold: Fold
    clock: int

    @property
    def address(self) -> str:
        """The receiver."""
        return self.actor.snapshot.address


def fold_deliveries(
    table: StateTable,
    cache: ActorCache,
    sender: ActorSnapshot,
    fold: Fold,
    now_ms: int,
    mail_only: MailOnly,
    extra_write_count: int = 0,
) -> list[Delivery]:
    """Fold the messages of a fold into the receivers that take them, as many as its commit holds.

    Raises TableError for reads that failed.
    """
    # What was spilled before is sent before, and a new actor's sends are few.
    if mail_only.everyone or sender.header.spill is not None or fold.state is None:
        return []
    left = OPERATIONS_MAX - fold.operation_count() - extra_write_count
    clock = max([sender.header.clock, *(mail.clock for mail in fold.consumed)])
    deliveries: list[Delivery] = []
    for receiver, messages in fold.sends.items():
        takes = actor_type_at(receiver).takes_deliveries and receiver not in mail_only.receivers
        # A head and an entry of the journal come in the place of a row of mail.
        if not takes or left < 1:
            continue
        clock = next_clock(clock, now_ms)
        delivery = _fold_into(table, cache, sender.address, receiver, messages, clock, now_ms)
        if delivery is None:
            continue
        more = delivery.fold.operation_count() - 1
        if more <= left:
            left -= more
            deliveries.append(delivery)
    return deliveries


def join_commits(
    commit: Commit, deliveries: Sequence[Delivery], now_ms: int
) -> tuple[Commit, list[ActorSnapshot]]:
    """Join the commits of the receivers to the sender's; returns the receivers after it, too."""
    if not deliveries:
        return commit, []
    parts = [
        build_commit(delivery.actor.snapshot, delivery.fold, now_ms) for delivery in deliveries
    ]
    receivers = dict.fromkeys(commit.receivers)
    for part in parts:
        receivers.update(dict.fromkeys(part.receivers))
    writes = (*commit.writes, *(write for part in parts for write in part.writes))
    return Commit(writes, commit.snapshot, tuple(receivers)), [part.snapshot for part in parts]


def _fold_into(
    table: StateTable,
    cache: ActorCache,
    sender: str,
    receiver: str,
    messages: Sequence[EncodedMessage],
    clock: int,
    now_ms: int,
) -> Delivery | None:
    """Fold messages into their receiver; None where they must be mail."""
    creates = messages[0][0] == actor_type_at(receiver).constructor
    try:
        if creates:
            actor = LoadedActor(ActorSnapshot(receiver, 0, Header(), None), ())
        else:
            actor = load_actor(table, cache, receiver, None)
        waits = actor.mail or actor.snapshot.header.spill is not None
        if waits or not (creates or actor.snapshot.revision):
            return None
        reader = FoldReader(table, actor)
        for name, body in messages:
            apply_stored_message(reader, name, parse_json(body), now_ms)
        finish_fold(reader, now_ms)
    except TornRead:
        return None
    except TableError:
        raise
    except Exception as error:
        log.warning("%s cannot take %s from %s: %s", receiver, messages[0][0], sender, error)
        return None
    if reader.fold.state is None:
        return None
    reader.fold.delivered.append(delivered_mail(receiver, sender, clock, messages))
    return Delivery(actor, reader.fold, clock)
