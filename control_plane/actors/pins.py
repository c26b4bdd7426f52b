"""Pins of checkpoints: rows with the experiments that started from one, for which it is kept."""

import dataclasses
import json
from dataclasses import dataclass

from control_plane.actors.step import CommandRefused, StepContext

PINS = "pins"


@dataclass(frozen=True, slots=True)
class Pin:
    """A checkpoint's row in `pins`: the experiments that started from it. `gone`: it is deleted."""

    by: tuple[int, ...] = ()
    gone: bool = False


def decode_pin(body: bytes) -> Pin:
    """Decode the body of a row in `pins`; an empty one is an empty pin."""
    if not body:
        return Pin()
    fields = json.loads(body)
    return Pin(tuple(fields["by"]), fields["gone"])


def encode_pin(pin: Pin) -> bytes:
    """The body of a row in `pins`."""
    return json.dumps({"by": list(pin.by), "gone": pin.gone}).encode()


def add_pin(uuid: str, experiment_id: int, context: StepContext) -> None:
    """Pin a checkpoint for an experiment that starts from it, in the commit that starts it.

    Raises:
        CommandRefused: conflict; the checkpoint is being deleted, or is gone.
    """
    row = context.row(PINS, uuid)
    pin = decode_pin(row.body)
    if pin.gone:
        raise CommandRefused("conflict", f"checkpoint {uuid} was deleted")
    if experiment_id not in pin.by:
        pin = dataclasses.replace(pin, by=(*pin.by, experiment_id))
    context.write_row(PINS, uuid, encode_pin(pin), expected=row)


def remove_pin(uuid: str, experiment_id: int, context: StepContext) -> None:
    """Remove an experiment from the pin of a checkpoint."""
    row = context.row(PINS, uuid)
    pin = decode_pin(row.body)
    if experiment_id in pin.by:
        by = tuple(other for other in pin.by if other != experiment_id)
        body = encode_pin(dataclasses.replace(pin, by=by)) if by or pin.gone else None
        context.write_row(PINS, uuid, body, expected=row)
