"""A search method: what its author writes, and what it is told beside each event."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

from detcloud import DetcloudError
from detcloud.searcher.operations import Operation

STATE_FILE = "method.pickle"


class ExitedReason(Enum):
    """Why a trial ended before it did what was asked of it."""

    ERRORED = "ERRORED"
    USER_CANCELED = "USER_CANCELED"
    INVALID_HP = "INVALID_HP"

    @classmethod
    def of(cls, reason: str) -> ExitedReason:
        """The cluster's reason, which is finer: a trial that stops itself counts as canceled."""
        if reason == "ERRORED":
            return cls.ERRORED
        return cls.INVALID_HP if "INVALID_HP" in reason else cls.USER_CANCELED


@dataclass
class SearcherState:
    """What the runner counts for the method, which only reads it. `trial_progress` is each
    trial's training so far, in the unit of the search; one with invalid hyperparameters has none.
    """

    failures: set[UUID] = field(default_factory=set)
    trial_progress: dict[UUID, float] = field(default_factory=dict)
    trials_closed: set[UUID] = field(default_factory=set)
    trials_created: set[UUID] = field(default_factory=set)
    last_event_id: int = 0
    experiment_id: int | None = None
    experiment_completed: bool = False
    experiment_failed: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "failures": sorted(map(str, self.failures)),
            "trialProgress": {str(trial): units for trial, units in self.trial_progress.items()},
            "trialsClosed": sorted(map(str, self.trials_closed)),
            "trialsCreated": sorted(map(str, self.trials_created)),
            "lastEventId": self.last_event_id,
            "experimentId": self.experiment_id,
            "experimentCompleted": self.experiment_completed,
            "experimentFailed": self.experiment_failed,
        }

    def from_dict(self, fields: dict[str, Any]) -> None:
        """Takes over what `to_dict` gave."""
        self.failures = set(map(UUID, fields["failures"]))
        self.trial_progress = {UUID(k): v for k, v in fields["trialProgress"].items()}
        self.trials_closed = set(map(UUID, fields["trialsClosed"]))
        self.trials_created = set(map(UUID, fields["trialsCreated"]))
        self.last_event_id = fields["lastEventId"]
        self.experiment_id = fields["experimentId"]
        self.experiment_completed = fields["experimentCompleted"]
        self.experiment_failed = fields["experimentFailed"]


class SearchMethod(ABC):
    """A search algorithm: it is told what happens and answers with operations, in order.

    After a crash an event may be told again, to a method as it was saved before that event; what
    the first telling asked for was then not done. So a method is to change nothing but itself.
    """

    @abstractmethod
    def initial_operations(self, searcher_state: SearcherState) -> list[Operation]:
        """The search begins."""

    @abstractmethod
    def on_trial_created(self, searcher_state: SearcherState, request_id: UUID) -> list[Operation]:
        """A trial was made, as a Create asked for."""

    @abstractmethod
    def on_validation_completed(
        self, searcher_state: SearcherState, request_id: UUID, metric: float, train_length: int
    ) -> list[Operation]:
        """A trial trained to a length that a ValidateAfter named, and validated there.

        A metric that was no finite number comes as the worst one there is.
        """

    @abstractmethod
    def on_trial_closed(self, searcher_state: SearcherState, request_id: UUID) -> list[Operation]:
        """A trial has ended, whether early or not: it comes once for each, and last."""

    @abstractmethod
    def on_trial_exited_early(
        self, searcher_state: SearcherState, request_id: UUID, exited_reason: ExitedReason
    ) -> list[Operation]:
        """A trial ended before it did what was asked of it; `on_trial_closed` follows."""

    @abstractmethod
    def progress(self, searcher_state: SearcherState) -> float:
        """How much of the search is done, in [0, 1]."""

    def save_method_state(self, path: Path) -> None:
        """Writes what the method has to remember into the empty folder `path`.

        As it stands it pickles the method's attributes.
        """
        try:
            (path / STATE_FILE).write_bytes(pickle.dumps(vars(self)))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise DetcloudError(
                f"{type(self).__name__} cannot be pickled ({error}); give it save_method_state "
                "and load_method_state of its own"
            ) from error

    def load_method_state(self, path: Path) -> None:
        """Reads from the folder `path` what `save_method_state` wrote."""
        vars(self).update(pickle.loads((path / STATE_FILE).read_bytes()))
