"""Pins that users set on checkpoints, which protect the checkpoints from deletion."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from control_plane.access.principals import Principal, Role
from control_plane.actors.pins import PINS, Pin, decode_pin, encode_pin, pin_body
from control_plane.errors import Code, RequestError
from control_plane.queries.checkpoint import get_checkpoint
from control_plane.services import Services
from control_plane.state.table import Delete, Key, Row, Write
from control_plane.usecases.row_changes import change_row, replacing_put

# The most users that pin a checkpoint. A pin's row names every user.
USERS_OF_CHECKPOINT_MAX = 100


@dataclass(frozen=True)
class PinChange:
    """The pin of a checkpoint after a change."""

    uuid: str
    pin: Pin


PinExtraWrites = Callable[[PinChange], tuple[Write, ...]]
"""Returns further writes for the commit of a change, given the change."""


def pin_checkpoint(
    services: Services, prefix: str, caller: Principal, extra_writes: PinExtraWrites
) -> PinChange:
    """Pin a checkpoint for the caller, which prevents the deletion; return the UUID and the pin.

    Any user may pin any checkpoint. If the caller has already pinned the checkpoint, only the extra
    writes are committed.

    Args:
        services: the services that read and write the pin.
        prefix: a prefix of the checkpoint's UUID.
        caller: the user.
        extra_writes: returns further writes of the commit.

    Raises:
        RequestError: not_found, if no checkpoint has the prefix. invalid, if several have it or it
            is not the start of a UUID. conflict, if the checkpoint is deleted, also in part, or
            USERS_OF_CHECKPOINT_MAX users have pinned it. unavailable, if other requests keep
            changing the pin.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """
    uuid = get_checkpoint(services, prefix)[0].checkpoint.uuid

    def change(row: Row | None) -> tuple[PinChange, tuple[Write, ...]]:
        # Read the checkpoint after the pin. Marking a checkpoint for deletion changes the pin, so
        # that the commit fails if this happens after the read.
        record, _ = get_checkpoint(services, uuid)
        pin = Pin() if row is None else decode_pin(row.body)
        if pin.is_deleted or not record.state.may_be_pinned:
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
    """Remove the caller's pin from a checkpoint, for an admin all users' pins; return the rest.

    Pins of experiments and model versions stay. If no user has pinned the checkpoint, only the
    extra writes are committed. `pin_checkpoint` describes the arguments.

    Raises:
        RequestError: not_found or invalid, as `pin_checkpoint`; forbidden, if only other users have
            pinned the checkpoint and the caller is no admin; unavailable, if other requests keep
            changing the pin.
        Conflict: the condition of an extra write does not hold; nothing was written.
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
    """Return the write that replaces `row` by the pin, or deletes the row of an empty pin.

    A pin is empty if nothing holds the checkpoint and the checkpoint is not gone. The write expects
    the revision of `row`. Without a row, the write creates the row, also for an empty pin.

    Args:
        uuid: the checkpoint.
        row: the current row; None if the checkpoint has no pin.
        pin: the new pin.
        now_ms: the current time.
    """
    key = Key(PINS, uuid)
    if row is None:
        return replacing_put(key, None, encode_pin(pin), now_ms)
    body = pin_body(pin, row.body)
    if body is None:
        return Delete(key, row.revision)
    return replacing_put(key, row, body, now_ms)


def _same_pin(
    uuid: str, pin: Pin, extra_writes: PinExtraWrites
) -> tuple[PinChange, tuple[Write, ...]]:
    """Return the result and the writes of a change without effect: only the extra writes."""
    same = PinChange(uuid, pin)
    return same, extra_writes(same)
