"""The steps of a fold: how messages change an actor, in live commits and in replays alike."""

import logging
import sys
from collections.abc import Iterable

from control_plane.actors.messages.stored_names import UndecodableMessage
from control_plane.actors.step import StepContext
from control_plane.engine.actor_types import ActorType
from control_plane.engine.fold import Step, step_of
from control_plane.engine.mailbox import ISOLATE_FROM_ATTEMPTS, MailboxRow
from control_plane.engine.reader import FoldReader, TornRead
from control_plane.state.table import TableError

log = logging.getLogger(__name__)


def fold_mail(
    reader: FoldReader,
    rows: Iterable[MailboxRow],
    now_ms: int,
    skipped: set[str],
    messages_max: int = sys.maxsize,
) -> None:
    """Fold mail in order, as much as a commit can hold and at most `messages_max` messages.

    The folded messages are added to the reader's fold, and each row to `consumed`. A row that does
    not fit completely is folded in part. Nothing is written to the table.

    If a message cannot be folded, the error is logged and later rows of the same sender are not
    folded either; other senders are unaffected. A row with ISOLATE_FROM_ATTEMPTS or more attempts
    is folded alone, one message per commit.

    Args:
        rows: the mail in order.
        skipped: the sort keys of rows to leave out, with the later rows of their senders. Rows
            whose first message fails are added.

    Raises TornRead, and TableError if the table fails while the first message of the commit is
    read. After a later failure of the table, the messages so far stay folded. A failure of the
    table does not count against the message.
    """
    blocked_senders: set[str] = set()
    remaining = messages_max
    for mail in rows:
        if mail.key.sort in skipped or mail.sender in blocked_senders:
            blocked_senders.add(mail.sender)
            continue
        is_isolated = mail.attempts >= ISOLATE_FROM_ATTEMPTS
        if remaining <= 0 or (is_isolated and reader.fold.consumed):
            return
        candidate = mail.first_messages(1 if is_isolated else remaining)
        count, failed = _fold_row(reader, candidate, now_ms)
        if count:
            reader.fold.consume(mail.first_messages(count))
            remaining -= count
        if failed:
            blocked_senders.add(mail.sender)
            if not count:
                skipped.add(mail.key.sort)
        elif is_isolated or count < len(mail.messages):
            return


def _fold_row(reader: FoldReader, mail: MailboxRow, now_ms: int) -> tuple[int, bool]:
    """Fold the messages of a row, up to a message that does not fit or cannot be folded.

    The steps are added to the reader's fold; the caller records the row as consumed. The first
    message of a commit is folded even if too large.

    Return the number of folded messages, and whether the next message cannot be folded, which is
    logged. Raises TornRead, and TableError for the first message of the commit. A later TableError
    ends the row as if the next message did not fit.
    """
    first_of_commit = not reader.fold.consumed
    for count, (name, fields) in enumerate(mail.messages):
        try:
            step = _run_step(reader, _decode_message(reader, name, fields), now_ms)
        except TableError:
            if first_of_commit and not count:
                raise
            return count, False
        except TornRead:
            raise
        except Exception:
            log.exception("%s cannot fold %s", reader.snapshot.address, mail.key.sort)
            return count, True
        folded_bytes = len(mail.body) * (count + 1) // len(mail.messages)
        # The first message of a commit is folded even if too large.
        is_first = first_of_commit and not count
        if not is_first and not reader.fold.has_room(step, folded_bytes):
            return count, False
        reader.fold.add_step(step)
    return len(mail.messages), False


def apply_message(reader: FoldReader, message: object, now_ms: int) -> None:
    """Apply a message to the reader's fold with the actor's `step`.

    Raises the errors of the step, such as CommandRefused. Raises TableError if a read fails, and
    TornRead if the rows that were read belong to different moments. Raises KeyError or ValueError
    if a message that the step sends cannot be encoded. After an error, the fold is unchanged.
    """
    reader.fold.add_step(_run_step(reader, message, now_ms))


def apply_stored_message(reader: FoldReader, name: str, fields: object, now_ms: int) -> None:
    """Apply a message that is given by stored name and fields to the reader's fold.

    After an error, the fold is unchanged:
    - KeyError for an unknown name, and ValueError for fields that do not fit the message type;
    - any error of the actor's `step`, such as CommandRefused;
    - TornRead if the rows that were read belong to different moments, and TableError if a read
      fails;
    - KeyError or ValueError if a message that the step sends cannot be encoded.
    """
    apply_message(reader, _decode_message(reader, name, fields), now_ms)


def _decode_message(reader: FoldReader, name: str, fields: object) -> object:
    """Decode a message to the actor.

    Raises KeyError for an unknown name, and ValueError for fields that do not fit the message type.
    """
    return reader.actor_type.decode_message(name, fields)


def _run_step(reader: FoldReader, message: object, now_ms: int) -> Step:
    """Run the actor's `step` on the fold's state and return the outcome. The fold is not changed.

    Raises the errors of the step, TornRead and TableError of reads, and KeyError or ValueError if a
    sent message cannot be encoded.
    """
    snapshot = reader.snapshot
    context = StepContext(snapshot.address, now_ms, reader)
    return step_of(reader.actor_type.step(reader.fold.state, message, context), context)


def apply_fallback(reader: FoldReader, name: str, fields: object, now_ms: int) -> None:
    """Apply a dead letter, which is a message that no attempt could fold, with the actor's
    `fallback`.

    A message that cannot be decoded reaches the fallback as an UndecodableMessage. If the fallback
    fails, log the error and leave the fold unchanged. Raises TableError if a read fails, and
    TornRead if the rows that were read belong to different moments.

    Args:
        reader: the reader whose fold is changed.
        name: the stored name of the message.
        fields: the stored fields of the message as JSON values.
    """
    snapshot, fold = reader.snapshot, reader.fold
    context = StepContext(snapshot.address, now_ms, reader)
    try:
        message = _decode_or_name(reader.actor_type, name, fields)
        fold.add_step(step_of(reader.actor_type.fallback(fold.state, message, context), context))
    except (TornRead, TableError):
        raise
    except Exception:
        log.exception("no fallback for %s at %s", name, snapshot.address)


def finish_fold(reader: FoldReader, now_ms: int) -> None:
    """Apply the actor's `finish_fold` to the fold, after the last message.

    Do nothing if the actor's type has no such function or the actor does not exist. The fold is
    unchanged after an error:
    - any error of the type's `finish_fold`;
    - TornRead if the rows that were read belong to different moments, and TableError if a read
      fails;
    - KeyError or ValueError if a sent message cannot be encoded.
    """
    snapshot, fold = reader.snapshot, reader.fold
    if reader.actor_type.finish_fold is not None and fold.state is not None:
        context = StepContext(snapshot.address, now_ms, reader)
        state = reader.actor_type.finish_fold(fold.state, context)
        fold.add_step(step_of(state, context))


def _decode_or_name(actor_type: ActorType, name: str, fields: object) -> object:
    """Decode a message for the fallback. Return an UndecodableMessage with the name if decoding
    fails.
    """
    try:
        return actor_type.decode_message(name, fields)
    except (KeyError, ValueError):
        return UndecodableMessage(name)
