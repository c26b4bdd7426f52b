"""Pins that users set on checkpoints by hand, so that nobody deletes them."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from control_plane.access.principals import Principal, Role
from control_plane.actors.pins import PINS, Pin, decode_pin, encode_pin, pin_body
from control_plane.errors import Code, RequestError
from control_plane.queries.checkpoint import get_checkpoint
from control_plane.services import Services
from control_plane.state.table import Delete, Expect, Key, Put, Row, Write
from control_plane.usecases.row_changes import change_row

# A pin names each of them, and is read whole.
USERS_OF_CHECKPOINT_MAX = 100


@dataclass(frozen=True)
class PinChange:
    """A pin of a checkpoint as a change leaves it."""

    uuid: str
    pin: Pin


PinExtraWrites = Callable[[PinChange], tuple[Write, ...]]
"""Makes the writes that a change has to commit with its own."""


def pin_checkpoint(
    services: Services, prefix: str, caller: Principal, extra_writes: PinExtraWrites
) -> PinChange:
    """Keep a checkpoint until the caller unpins it. Every user may pin any; again is no error.

    Raises:
        RequestError: not_found; invalid; conflict, if it is deleted or pinned by too many.
    """
    uuid = get_checkpoint(services, prefix)[0].checkpoint.uuid

    def change(row: Row | None) -> tuple[PinChange, tuple[Write, ...]]:
        # The pin was read first: a checkpoint that is marked for deletion later changes it.
        record, _ = get_checkpoint(services, uuid)
        pin = Pin() if row is None else decode_pin(row.body)
        if pin.gone or not record.state.may_be_pinned:
            text = f"checkpoint {uuid} was {record.state.deletion_text}, and cannot be pinned"
            raise RequestError(Code.CONFLICT, text)
        if caller.user in pin.users:
            return _same_pin(uuid, pin, extra_writes)
        if len(pin.users) >= USERS_OF_CHECKPOINT_MAX:
            text = (
                f"checkpoint {uuid} is already pinned by {USERS_OF_CHECKPOINT_MAX} users, the limit"
            )
            raise RequestError(Code.CONFLICT, f"{text}; it is kept without another pin")
        changed = PinChange(uuid, replace(pin, users=(*pin.users, caller.user)))
        write = pin_write(uuid, row, changed.pin, services.now_ms())
        return changed, (write, *extra_writes(changed))

    return change_row(services.table, Key(PINS, uuid), change, f"the pin of checkpoint {uuid}")


def unpin_checkpoint(
    services: Services, prefix: str, caller: Principal, extra_writes: PinExtraWrites
) -> PinChange:
    """Remove the caller's pin of a checkpoint, or every user's for an admin; none is no error.

    Raises:
        RequestError: not_found; invalid; forbidden, if only others have pinned it.
    """
    uuid = get_checkpoint(services, prefix)[0].checkpoint.uuid

    def change(row: Row | None) -> tuple[PinChange, tuple[Write, ...]]:
        pin = Pin() if row is None else decode_pin(row.body)
        if row is None or not pin.users:
            return _same_pin(uuid, pin, extra_writes)
        is_admin = caller.role is Role.ADMIN
        if caller.user not in pin.users and not is_admin:
            text = f"checkpoint {uuid} is pinned by {', '.join(pin.users)}"
            raise RequestError(Code.FORBIDDEN, f"{text}: only they or an admin can unpin it")
        kept = () if is_admin else tuple(user for user in pin.users if user != caller.user)
        changed = PinChange(uuid, replace(pin, users=kept))
        write = pin_write(uuid, row, changed.pin, services.now_ms())
        return changed, (write, *extra_writes(changed))

    return change_row(services.table, Key(PINS, uuid), change, f"the pin of checkpoint {uuid}")


def pin_write(uuid: str, row: Row | None, pin: Pin, now_ms: int) -> Write:
    """Make the write that puts a pin in place of `row`, or removes the row if it has nothing to
    tell any more. A first revision is the time: a row that went and came again is another one.
    """
    key = Key(PINS, uuid)
    if row is None:
        return Put(key, now_ms, encode_pin(pin), Expect.ABSENT)
    body = pin_body(pin)
    if body is None:
        return Delete(key, row.revision)
    return Put(key, row.revision + 1, body, row.revision, row.due_ms, row.expires)


def _same_pin(
    uuid: str, pin: Pin, extra_writes: PinExtraWrites
) -> tuple[PinChange, tuple[Write, ...]]:
    same = PinChange(uuid, pin)
    return same, extra_writes(same)
