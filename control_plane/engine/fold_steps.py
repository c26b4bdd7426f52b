"""The steps of a fold: how messages change an actor, live and in replays alike."""

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
    """Fold as much of the mail as one commit can hold, in order, and at most so many messages. A
    row that does not fit is folded in part.

    A message that cannot be folded holds up its sender alone; its row's sort key is added to
    `skipped`, and rows that are there already are left out. Raises TornRead, and TableError for the
    reads of the first message: a table that does not answer says nothing about a message.
    """
    stuck: set[str] = set()
    left = messages_max
    for mail in rows:
        if mail.key.sort in skipped or mail.sender in stuck:
            stuck.add(mail.sender)
            continue
        alone = mail.attempts >= ISOLATE_FROM_ATTEMPTS
        if left <= 0 or (alone and reader.fold.consumed):
            return
        wanted = mail.first_messages(1 if alone else left)
        count, failed = _fold_row(reader, wanted, now_ms)
        if count:
            reader.fold.consume(mail.first_messages(count))
            left -= count
        if failed:
            stuck.add(mail.sender)
            if not count:
                skipped.add(mail.key.sort)
        elif alone or count < len(mail.messages):
            return


def _fold_row(reader: FoldReader, mail: MailboxRow, now_ms: int) -> tuple[int, bool]:
    """Fold the first messages of a row: all, or as many as fit into the commit or come before one
    that cannot be folded. Returns how many, and whether there is such a one.
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
        # The first message of a commit is folded in any case.
        is_first = first_of_commit and not count
        if not is_first and not reader.fold.has_room(step, folded_bytes):
            return count, False
        reader.fold.add_step(step)
    return len(mail.messages), False


def apply_message(reader: FoldReader, message: object, now_ms: int) -> None:
    """Apply one message to the fold with its actor's `step`; raises what the step raises."""
    reader.fold.add_step(_run_step(reader, message, now_ms))


def apply_stored_message(reader: FoldReader, name: str, fields: object, now_ms: int) -> None:
    """Apply a message given as it is stored; KeyError for a name that no message of the actor has,
    ValueError for fields that it does not have.
    """
    apply_message(reader, _decode_message(reader, name, fields), now_ms)


def _decode_message(reader: FoldReader, name: str, fields: object) -> object:
    """Decode a stored message to the actor; raises as `apply_stored_message` does."""
    return reader.actor_type.decode_message(name, fields)


def _run_step(reader: FoldReader, message: object, now_ms: int) -> Step:
    """Run the actor's `step`, which leaves the fold as it is."""
    snapshot = reader.snapshot
    context = StepContext(snapshot.address, now_ms, reader)
    return step_of(reader.actor_type.step(reader.fold.state, message, context), context)


def apply_fallback(reader: FoldReader, name: str, fields: object, now_ms: int) -> None:
    """Apply a dead letter, a message that no attempt could fold, with its actor's `fallback`.
    Raises only for reads that failed.
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
    """End a fold, for actor types that do something there."""
    snapshot, fold = reader.snapshot, reader.fold
    if reader.actor_type.finish_fold is not None and fold.state is not None:
        context = StepContext(snapshot.address, now_ms, reader)
        state = reader.actor_type.finish_fold(fold.state, context)
        fold.add_step(step_of(state, context))


def _decode_or_name(actor_type: ActorType, name: str, fields: object) -> object:
    """Decode a message; an UndecodableMessage where that fails, which a fallback hears of too."""
    try:
        return actor_type.decode_message(name, fields)
    except (KeyError, ValueError):
        return UndecodableMessage(name)
