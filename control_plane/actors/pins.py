"""Pins of checkpoints: rows with what one is kept for, the experiments that started from it, the
model versions that hold it and the users who pinned it.
"""

import dataclasses
import json
from dataclasses import dataclass

from control_plane.actors.step import CommandRefused, StepContext

PINS = "pins"


@dataclass(frozen=True, slots=True)
class Pin:
    """A checkpoint's row in `pins`: the experiments that started from it, the model versions that
    hold it, each as `MODEL/NUMBER`, and the users who pinned it. `gone`: it is deleted.
    """

    by: tuple[int, ...] = ()
    gone: bool = False
    versions: tuple[str, ...] = ()
    users: tuple[str, ...] = ()

    def is_held(self, except_experiment: int = 0) -> bool:
        """Whether anything holds the checkpoint, the experiment of that id left aside."""
        is_kept = bool(self.versions or self.users)
        return is_kept or bool(set(self.by) - {except_experiment})

    def versions_text(self) -> str:
        """The beginning of a sentence about the model versions that hold the checkpoint."""
        names = ", ".join(self.versions)
        if len(self.versions) == 1:
            return f"model version {names} holds"
        return f"model versions {names} hold"

    def holders_text(self) -> str:
        """The sentence of a refusal that names the holders; "" where there are none."""
        reasons = []
        if self.by:
            noun = "experiment" if len(self.by) == 1 else "experiments"
            reasons.append(f"{noun} {', '.join(map(str, self.by))} started from it")
        if self.versions:
            reasons.append(f"{self.versions_text()} it")
        if self.users:
            reasons.append(f"{', '.join(self.users)} pinned it")
        return ", and ".join(reasons)


def decode_pin(body: bytes) -> Pin:
    """Decode the body of a row in `pins`; an empty one is an empty pin."""
    if not body:
        return Pin()
    fields = json.loads(body)
    versions, users = fields.get("versions", ()), fields.get("users", ())
    return Pin(tuple(fields["by"]), fields["gone"], tuple(versions), tuple(users))


def encode_pin(pin: Pin) -> bytes:
    """The body of a row in `pins`. One without versions and users is as it was before there were
    any.
    """
    fields: dict[str, object] = {"by": list(pin.by), "gone": pin.gone}
    if pin.versions:
        fields["versions"] = list(pin.versions)
    if pin.users:
        fields["users"] = list(pin.users)
    return json.dumps(fields).encode()


def pin_body(pin: Pin) -> bytes | None:
    """The body of a pin's row, None where the row has nothing to tell any more."""
    return encode_pin(pin) if pin.is_held() or pin.gone else None


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
        context.write_row(PINS, uuid, pin_body(dataclasses.replace(pin, by=by)), expected=row)
