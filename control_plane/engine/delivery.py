"""Delivery: folding messages into the receiver's state within the sender's commit.

Pools and experiments have many senders. Their messages are mail, and one commit folds all mail that
has arrived. A trial has few senders, and one message creates the trial or assigns its slots. For a
trial, a mailbox row, its deletion and a second commit cost more than the effect of the message. The
sender's commit therefore folds the message with the same step and the same journal entry. The
revision of the receiver's head guards the fold.

A message becomes mail if its delivery is impossible: the receiver has mail already, another process
committed first, a step fails, or the commit is full.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain

from control_plane.engine.actor_types import EncodedMessage, actor_type_at, parse_json
from control_plane.engine.commits import Commit, build_commit
from control_plane.engine.fold import ActorSnapshot, Fold
from control_plane.engine.fold_steps import apply_stored_message, finish_fold
from control_plane.engine.head import Header
from control_plane.engine.mailbox import delivered_mail, next_clock
from control_plane.engine.reader import ActorCache, FoldReader, LoadedActor, TornRead, load_actor
from control_plane.state.table import OPERATIONS_MAX, StateTable, TableError

log = logging.getLogger(__name__)


@dataclass
class MailOnly:
    """The receivers that only get mail in an operation, because an attempt to deliver failed."""

    receivers: set[str] = field(default_factory=set)
    """The addresses of the actors to which messages must be mailed."""
    everyone: bool = False
    """Whether the messages to all actors must be mailed."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """The fold of delivered messages into a receiver, before the commit."""

    actor: LoadedActor
    """The receiver as it was loaded."""
    fold: Fold
    """The outcome of the messages, which the receiver's commit makes durable."""
    clock: int
    """The value of the sender's hybrid clock at which the messages are sent."""

    @property
    def address(self) -> str:
        """The address of the receiver."""
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
    """Fold the messages that the sender's `fold` sends into the receivers. Nothing is written.

    Return the folds of the receivers, which `join_commits` adds to the sender's commit. Messages
    without a delivery must be mailed. A message has no delivery in each of these cases:
    - the receiver's type takes no deliveries, or `mail_only` contains the receiver;
    - the receiver has mail, does not exist or cannot fold the message, which is logged;
    - the commit would have more than OPERATIONS_MAX operations.

    Return [] if `mail_only.everyone` is set, or if the sender has no state after the fold. Also
    return [] if the sender has a spilled outbox: messages of an earlier, full commit, which are
    mailed first.

    Raises TableError if a read fails, and KeyError for an unknown type of receiver.

    Args:
        sender: the sender before its fold.
        mail_only: the receivers whose messages must be mailed, because a delivery failed before.
        extra_write_count: the number of writes that the caller adds to the commit.
    """
    # A spilled outbox is sent before later messages, and a fold without a state sends nothing.
    if mail_only.everyone or sender.header.spill is not None or fold.state is None:
        return []
    remaining_operations = OPERATIONS_MAX - fold.operation_count() - extra_write_count
    clock = max([sender.header.clock, *(mail.clock for mail in fold.consumed)])
    deliveries: list[Delivery] = []
    for receiver, messages in fold.sends.items():
        accepts = actor_type_at(receiver).takes_deliveries and receiver not in mail_only.receivers
        # A delivery writes at least a head and a journal entry in place of a mailbox row.
        if not accepts or remaining_operations < 1:
            continue
        clock = next_clock(clock, now_ms)
        delivery = _fold_into(table, cache, sender.address, receiver, messages, clock, now_ms)
        if delivery is None:
            continue
        extra_operations = delivery.fold.operation_count() - 1
        if extra_operations <= remaining_operations:
            remaining_operations -= extra_operations
            deliveries.append(delivery)
    return deliveries


def join_commits(
    commit: Commit, deliveries: Sequence[Delivery], now_ms: int
) -> tuple[Commit, list[ActorSnapshot]]:
    """Join the commits of the receivers to the sender's commit. Nothing is written yet.

    Return the joined commit, and the receivers as they are after the commit, in the order of
    `deliveries`. The joined commit has the writes and the receivers of mail of all commits, and the
    sender's snapshot. Without deliveries, return `commit` itself and an empty list.

    Args:
        commit: the sender's commit.
    """
    if not deliveries:
        return commit, []
    receiver_commits = [
        build_commit(delivery.actor.snapshot, delivery.fold, now_ms) for delivery in deliveries
    ]
    receivers = dict.fromkeys(commit.receivers)
    for joined in receiver_commits:
        receivers.update(dict.fromkeys(joined.receivers))
    writes = chain(commit.writes, *(joined.writes for joined in receiver_commits))
    joined_commit = Commit(tuple(writes), commit.snapshot, tuple(receivers))
    return joined_commit, [joined.snapshot for joined in receiver_commits]


def _fold_into(
    table: StateTable,
    cache: ActorCache,
    sender: str,
    receiver: str,
    messages: Sequence[EncodedMessage],
    clock: int,
    now_ms: int,
) -> Delivery | None:
    """Load the receiver and fold messages into the receiver. Nothing is written.

    Return None if the messages must be mailed:
    - the receiver has mail or a spilled outbox (messages of its own that are not mailed yet);
    - the receiver does not exist, and the first message does not create the receiver;
    - the read is torn (its rows belong to different moments), or the receiver has no state after
      the fold;
    - a step or `finish_fold` raises an error, which is logged.

    Raises TableError if a read fails. If the first message creates the receiver, no row is read;
    the commit then conflicts with an existing receiver.

    Args:
        messages: the encoded messages, at least one.
        clock: the sender's clock for the messages.
    """
    creates = messages[0][0] == actor_type_at(receiver).constructor
    try:
        if creates:
            actor = LoadedActor(ActorSnapshot(receiver, 0, Header(), None), ())
        else:
            actor = load_actor(table, cache, receiver, None)
        has_backlog = actor.mail or actor.snapshot.header.spill is not None
        if has_backlog or not (creates or actor.snapshot.revision):
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
        log.warning("%s cannot fold %s from %s: %s", receiver, messages[0][0], sender, error)
        return None
    if reader.fold.state is None:
        return None
    reader.fold.delivered.append(delivered_mail(receiver, sender, clock, messages))
    return Delivery(actor, reader.fold, clock)
