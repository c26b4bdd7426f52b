"""The steps of a fold: how messages change an actor, live and in replays alike."""

import logging

from control_plane.actors.step import StepContext
from control_plane.engine.reader import FoldReader, TornRead
from control_plane.state.table import TableError

log = logging.getLogger(__name__)


def apply_message(reader: FoldReader, message: object, now_ms: int) -> None:
    """Apply one message to the fold with its actor's `step`; raises what the step raises."""
    snapshot, fold = reader.snapshot, reader.fold
    context = StepContext(snapshot.address, now_ms, reader)
    fold.add_step(snapshot.actor_type.step(fold.state, message, context), context)


def apply_stored_message(reader: FoldReader, name: str, fields: object, now_ms: int) -> None:
    """Apply a message given as it is stored; KeyError for a name that no message of the actor has,
    ValueError for fields that it does not have.
    """
    apply_message(reader, reader.snapshot.actor_type.decode_message(name, fields), now_ms)


def apply_fallback(reader: FoldReader, name: str, fields: object, now_ms: int) -> None:
    """Apply a dead letter, a message that no attempt could fold, with its actor's `fallback`.
    Raises only for reads that failed.
    """
    snapshot, fold = reader.snapshot, reader.fold
    context = StepContext(snapshot.address, now_ms, reader)
    try:
        message = snapshot.actor_type.decode_message(name, fields)
        fold.add_step(snapshot.actor_type.fallback(fold.state, message, context), context)
    except (TornRead, TableError):
        raise
    except Exception:
        log.exception("no fallback for %s at %s", name, snapshot.address)


def finish_fold(reader: FoldReader, now_ms: int) -> None:
    """End a fold, for actor types that do something there."""
    snapshot, fold = reader.snapshot, reader.fold
    if snapshot.actor_type.finish_fold is not None and fold.state is not None:
        context = StepContext(snapshot.address, now_ms, reader)
        fold.add_step(snapshot.actor_type.finish_fold(fold.state, context), context)
