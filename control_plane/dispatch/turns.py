"""Turns taken on a fold: the one way in which messages change an actor, live and replayed."""

import logging

from control_plane.actors.step import Turn
from control_plane.dispatch.reader import PartReader, Torn
from control_plane.state.table import TableError

log = logging.getLogger(__name__)


def take(reader: PartReader, message: object, now_ms: int) -> None:
    """One message's turn, whatever it raises."""
    snapshot, fold = reader.snapshot, reader.fold
    turn = Turn(snapshot.address, now_ms, reader)
    fold.absorb(snapshot.kind.step(fold.state, message, turn), turn)


def take_named(reader: PartReader, name: str, fields: object, now_ms: int) -> None:
    """As `take`, for a message as stored. KeyError for a name, ValueError for fields that no
    message has.
    """
    take(reader, reader.snapshot.kind.decode_message(name, fields), now_ms)


def bury(reader: PartReader, name: str, fields: object, now_ms: int) -> None:
    """The turn of a message that no attempt could fold: its actor falls back to a state without
    it. Nothing but a reading that failed is raised.
    """
    snapshot, fold = reader.snapshot, reader.fold
    turn = Turn(snapshot.address, now_ms, reader)
    try:
        message = snapshot.kind.decode_message(name, fields)
        fold.absorb(snapshot.kind.fallback(fold.state, message, turn), turn)
    except (Torn, TableError):
        raise
    except Exception:
        log.exception("no fallback for %s at %s", name, snapshot.address)


def settle(reader: PartReader, now_ms: int) -> None:
    """The end of a fold, for kinds that do something there."""
    snapshot, fold = reader.snapshot, reader.fold
    if snapshot.kind.settle is not None and fold.state is not None:
        turn = Turn(snapshot.address, now_ms, reader)
        fold.absorb(snapshot.kind.settle(fold.state, turn), turn)
