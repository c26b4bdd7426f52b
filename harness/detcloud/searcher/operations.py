"""The operations of search methods. A method identifies trials by UUIDs of its choice."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from uuid import UUID

from detcloud.shared.errors import DetcloudError

Fields = dict[str, Any]


class Operation(ABC):
    """A request of a search method to the cluster."""

    @abstractmethod
    def fields(self) -> Fields:
        """Return the operation as JSON data for the API. Raises DetcloudError for invalid
        values.
        """

    def __repr__(self) -> str:
        arguments = (
            str(value)[:8] if isinstance(value, UUID) else f"{name}={value!r}"
            for name, value in vars(self).items()
        )
        return f"{type(self).__name__}({', '.join(arguments)})"


class Create(Operation):
    """Create a trial. Repeating a request id creates no second trial."""

    def __init__(
        self, request_id: UUID, hparams: Mapping[str, Any], checkpoint: None = None
    ) -> None:
        """Describe the trial. Hyperparameters of the configuration are not added.

        Args:
            request_id: a new UUID such as `uuid.uuid4()`, which names the trial from now on.
            hparams: JSON values or scalars of NumPy by name. `global_batch_size` is required if the
                search's unit is records or epochs.
            checkpoint: None; trials start from the configuration's checkpoint, if any.

        Raises:
            DetcloudError: `checkpoint` is not None.
        """
        if checkpoint is not None:
            raise DetcloudError(
                "Create takes no checkpoint here; give the configuration's searcher a "
                "source_checkpoint_uuid or a source_trial_id, from which every trial starts"
            )
        self.request_id = request_id
        self.hparams = hparams

    def fields(self) -> Fields:
        """Return the operation as JSON data for the API.

        Raises DetcloudError for an invalid id and for hyperparameters that JSON cannot contain.
        """
        try:
            text = json.dumps(self.hparams, allow_nan=False, default=_to_plain_scalar)
        except (TypeError, ValueError, RecursionError) as error:
            raise DetcloudError(
                f"the hparams of {self.request_id} cannot be sent: {error}"
            ) from None
        return {"type": "create", **_request_id_field(self.request_id), "hparams": json.loads(text)}


class ValidateAfter(Operation):
    """Train a trial to a length and validate. Several requests for a trial run in order."""

    def __init__(self, request_id: UUID, length: int) -> None:
        """Describe the training.

        Args:
            request_id: the UUID of the trial's Create.
            length: the length from the trial's start, in the unit of the search; at least 1.
        """
        self.request_id = request_id
        self.length = length

    def fields(self) -> Fields:
        """Return the operation as JSON data for the API.

        Raises DetcloudError for an invalid id, and unless the length is an integer of at least 1.
        """
        length: object = self.length
        with suppress(TypeError):
            length = _to_plain_scalar(length)
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            raise DetcloudError(
                f"ValidateAfter got the length {self.length!r}; expected an integer of at least 1"
            )
        return {"type": "validate_after", **_request_id_field(self.request_id), "length": length}


class Close(Operation):
    """End a trial after all requested ValidateAfter operations."""

    def __init__(self, request_id: UUID) -> None:
        """Name the trial.

        Args:
            request_id: the UUID of the trial's Create.
        """
        self.request_id = request_id

    def fields(self) -> Fields:
        """Return the operation as JSON data for the API. Raises DetcloudError for an invalid id."""
        return {"type": "close", **_request_id_field(self.request_id)}


class Progress(Operation):
    """Report the completed part of the search."""

    def __init__(self, progress: float) -> None:
        """Set the completed part.

        Args:
            progress: a number, which is limited to [0, 1]. A number that is not finite counts as 0.
        """
        self.progress = progress

    def fields(self) -> Fields:
        """Return the operation as JSON data for the API. A value that is not finite becomes 0.

        Raises DetcloudError for a value that `float` refuses.
        """
        try:
            share = float(self.progress)
        except Exception as error:
            raise DetcloudError(
                f"Progress got {self.progress!r:.80}; expected a number in [0, 1]"
            ) from error
        share = min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0
        return {"type": "set_searcher_progress", "progress": share}


class Shutdown(Operation):
    """End the search: as completed, as canceled or as failed. No operation may follow."""

    def __init__(self, cancel: bool = False, failure: bool = False) -> None:
        """Select the end.

        Args:
            cancel: whether the experiment ends as CANCELED.
            failure: whether the experiment ends as ERROR, also with `cancel`.
        """
        self.cancel = cancel
        self.failure = failure

    def fields(self) -> Fields:
        """Return the operation as JSON data for the API."""
        return {"type": "shutdown", "cancel": bool(self.cancel), "failure": bool(self.failure)}


def _request_id_field(request_id: object) -> Fields:
    """Return the field `request_id` with the UUID as text.

    `request_id` is a UUID or the text of a UUID. Raises DetcloudError for anything else.
    """
    try:
        return {"request_id": str(UUID(str(request_id)))}
    except ValueError:
        raise DetcloudError(
            f"{request_id!r} is not a request id; expected a UUID such as uuid.uuid4()"
        ) from None


def _to_plain_scalar(value: Any) -> Any:
    """Return a scalar of numpy or torch, or an array or tensor of a single element, in Python.

    Raises TypeError for other types, and for an array or tensor of several elements.
    """
    kind = type(value).__name__
    if not hasattr(value, "item"):
        raise TypeError(f"{kind} cannot be represented in JSON")
    try:
        return value.item()
    except Exception as error:
        # numpy raises ValueError, torch raises RuntimeError.
        raise TypeError(f"{kind} is no scalar: {error}") from error


def read_operation(fields: Fields) -> Operation:
    """Return the operation that the JSON data `fields` describe, the inverse of `Operation.fields`.

    Raises DetcloudError for an unknown type, KeyError or TypeError for a missing field, and
    ValueError for an invalid request id.
    """
    kind, trial = fields["type"], fields.get("request_id")
    match kind:
        case "create":
            return Create(UUID(trial), fields["hparams"])
        case "validate_after":
            return ValidateAfter(UUID(trial), fields["length"])
        case "close":
            return Close(UUID(trial))
        case "set_searcher_progress":
            return Progress(fields["progress"])
        case "shutdown":
            return Shutdown(fields["cancel"], fields["failure"])
    raise DetcloudError(f"{kind!r} is the operation of another version of detcloud")
