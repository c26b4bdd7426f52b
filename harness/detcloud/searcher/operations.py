"""The operations that a search method may ask for; it names trials by UUIDs of its choice."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from detcloud.shared.errors import DetcloudError

Fields = dict[str, Any]


class Operation(ABC):
    """An instruction of a search method to the cluster."""

    @abstractmethod
    def fields(self) -> Fields:
        """The operation as the API takes it; DetcloudError for values that make no sense."""

    def __repr__(self) -> str:
        arguments = (
            str(value)[:8] if isinstance(value, UUID) else f"{name}={value!r}"
            for name, value in vars(self).items()
        )
        return f"{type(self).__name__}({', '.join(arguments)})"


class Create(Operation):
    """Make a trial; the same request id makes one trial, however often it is asked for.

    Args:
        request_id: a UUID such as `uuid.uuid4()`.
        hparams: names to values that JSON can hold, or scalars of numpy. Nothing is added from
            the configuration; `global_batch_size` is needed where the unit is records or epochs.
        checkpoint: None; trials start from the checkpoint that the configuration names, or none.
    """

    def __init__(
        self, request_id: UUID, hparams: Mapping[str, Any], checkpoint: None = None
    ) -> None:
        if checkpoint is not None:
            raise DetcloudError(
                "Create takes no checkpoint here; give the configuration's searcher a "
                "source_checkpoint_uuid or a source_trial_id, from which every trial starts"
            )
        self.request_id = request_id
        self.hparams = hparams

    def fields(self) -> Fields:
        """The operation as the API takes it."""
        try:
            text = json.dumps(self.hparams, allow_nan=False, default=_to_plain_scalar)
        except (TypeError, ValueError, RecursionError) as error:
            raise DetcloudError(
                f"the hparams of {self.request_id} cannot be sent: {error}"
            ) from None
        return {"type": "create", **_request_id_field(self.request_id), "hparams": json.loads(text)}


class ValidateAfter(Operation):
    """Let a trial train to `length` and validate there; several for one trial are done in turn.

    The length counts from the trial's start in the unit of the search.
    """

    def __init__(self, request_id: UUID, length: int) -> None:
        self.request_id = request_id
        self.length = length

    def fields(self) -> Fields:
        """The operation as the API takes it."""
        length = _to_plain_scalar(self.length) if hasattr(self.length, "item") else self.length
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            raise DetcloudError(
                f"ValidateAfter got the length {self.length!r}; expected an integer of at least 1"
            )
        return {"type": "validate_after", **_request_id_field(self.request_id), "length": length}


class Close(Operation):
    """Let the trial end once it has done its ValidateAfter operations."""

    def __init__(self, request_id: UUID) -> None:
        self.request_id = request_id

    def fields(self) -> Fields:
        """The operation as the API takes it."""
        return {"type": "close", **_request_id_field(self.request_id)}


class Progress(Operation):
    """Report the share of the search that is done; it is cut to [0, 1]."""

    def __init__(self, progress: float) -> None:
        self.progress = progress

    def fields(self) -> Fields:
        """The operation as the API takes it."""
        share = float(self.progress)
        share = min(max(share, 0.0), 1.0) if math.isfinite(share) else 0.0
        return {"type": "set_searcher_progress", "progress": share}


class Shutdown(Operation):
    """End the search, as completed, canceled or failed. Nothing may follow."""

    def __init__(self, cancel: bool = False, failure: bool = False) -> None:
        self.cancel = cancel
        self.failure = failure

    def fields(self) -> Fields:
        """The operation as the API takes it."""
        return {"type": "shutdown", "cancel": bool(self.cancel), "failure": bool(self.failure)}


def _request_id_field(request_id: object) -> Fields:
    try:
        return {"request_id": str(UUID(str(request_id)))}
    except ValueError:
        raise DetcloudError(
            f"{request_id!r} is not a request id; expected a UUID such as uuid.uuid4()"
        ) from None


def _to_plain_scalar(value: Any) -> Any:
    """A scalar of numpy or torch as plain Python."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be represented in JSON")


def read_operation(fields: Fields) -> Operation:
    """The operation whose `fields` these are."""
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
