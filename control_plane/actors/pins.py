"""Pin rows of checkpoints.

A pin keeps a checkpoint from deletion and names everything that uses the checkpoint.
"""

import dataclasses
from dataclasses import dataclass, field

from control_plane.actors.step import CommandRefused, StepContext
from control_plane.rows import experiment_rows
from control_plane.rows.json_codec import JsonCodec
from control_plane.rows.stored_fields import keep_stored_name

PINS = experiment_rows.PIN.partition
"""The partition of pin rows. The sort key of a row is the UUID of its checkpoint."""


@dataclass(frozen=True, slots=True)
class Pin:
    """The pin row of a checkpoint: everything that keeps the checkpoint from deletion."""

    experiments: tuple[int, ...] = field(default=(), metadata=keep_stored_name("by"))
    """Ids of the experiments that started from the checkpoint."""
    is_deleted: bool = field(default=False, metadata=keep_stored_name("gone"))
    """Whether the checkpoint was deleted or is being deleted."""
    versions: tuple[str, ...] = ()
    """The model versions that contain the checkpoint, each as `MODEL/NUMBER`."""
    users: tuple[str, ...] = ()
    """The names of the users who pinned the checkpoint."""

    def is_held(self, except_experiment: int = 0) -> bool:
        """Return whether a model version, a user or an experiment keeps the checkpoint from
        deletion.

        Args:
            except_experiment: the id of an experiment that does not count. 0: every experiment
                counts.
        """
        is_kept = bool(self.versions or self.users)
        return is_kept or bool(set(self.experiments) - {except_experiment})

    def versions_text(self) -> str:
        """Return the beginning of a sentence, for example "model version resnet/3 holds".

        Several model versions give "model versions resnet/3, resnet/4 hold". Without model
        versions, the text makes no sense, so the caller checks `versions` first.
        """
        names = ", ".join(self.versions)
        if len(self.versions) == 1:
            return f"model version {names} holds"
        return f"model versions {names} hold"

    def holders_text(self) -> str:
        """Return a clause that names all experiments, model versions and users that hold the
        checkpoint.

        The clause is for the message of a refusal. Return "" if nothing holds the checkpoint.
        """
        reasons = []
        if self.experiments:
            noun = "experiment" if len(self.experiments) == 1 else "experiments"
            reasons.append(f"{noun} {', '.join(map(str, self.experiments))} started from it")
        if self.versions:
            reasons.append(f"{self.versions_text()} it")
        if self.users:
            reasons.append(f"{', '.join(self.users)} pinned it")
        return ", and ".join(reasons)


_CODEC = JsonCodec(
    experiment_rows.PIN,
    Pin,
    {"experiments": tuple, "versions": tuple, "users": tuple},
    omitted=frozenset({"versions", "users"}),
)


def decode_pin(body: bytes) -> Pin:
    """Decode the body of a pin row. Return an empty Pin for an empty body, as of a missing row.

    Raises:
        ValueError: the body is not JSON.
    """
    return _CODEC.decode(body) if body else Pin()


def encode_pin(pin: Pin, before: bytes | None = None) -> bytes:
    """Encode a pin as the body of a row.

    Empty `versions` and `users` are left out, as in rows of older releases.

    Args:
        pin: the pin.
        before: the body of the row that is replaced, with fields of newer versions to keep. None
            for a new row.
    """
    return _CODEC.encode(pin, before)


def pin_body(pin: Pin, before: bytes) -> bytes | None:
    """Return the body of a pin's row, which replaces the body `before`.

    Return None if the row is to be removed, because nothing holds the checkpoint and the checkpoint
    was not deleted.
    """
    return encode_pin(pin, before) if pin.is_held() or pin.is_deleted else None


def add_pin(uuid: str, experiment_id: int, context: StepContext) -> None:
    """Add an experiment to a checkpoint's pin row, and create the row if needed.

    The commit fails if the pin row changes meanwhile. A named experiment is not added twice.

    Raises:
        CommandRefused: conflict; the checkpoint was deleted or is being deleted.
    """
    row = context.row(PINS, uuid)
    pin = decode_pin(row.body)
    if pin.is_deleted:
        raise CommandRefused("conflict", f"checkpoint {uuid} was deleted")
    if experiment_id not in pin.experiments:
        pin = dataclasses.replace(pin, experiments=(*pin.experiments, experiment_id))
    context.write_row(PINS, uuid, encode_pin(pin, row.body), expected=row)


def remove_pin(uuid: str, experiment_id: int, context: StepContext) -> None:
    """Remove an experiment from a checkpoint's pin row. The commit fails if the row changes
    meanwhile.

    The row is removed if nothing else holds the checkpoint, and the checkpoint was not deleted. Do
    nothing if the pin does not name the experiment.
    """
    row = context.row(PINS, uuid)
    pin = decode_pin(row.body)
    if experiment_id in pin.experiments:
        others = tuple(other for other in pin.experiments if other != experiment_id)
        body = pin_body(dataclasses.replace(pin, experiments=others), row.body)
        context.write_row(PINS, uuid, body, expected=row)
