"""The base class of search methods, and the state that each call gets besides the event."""

from __future__ import annotations

import json
import pickle
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

from detcloud.searcher.operations import Operation
from detcloud.shared.errors import DetcloudError

STATE_FILE = "method.pickle"
SEARCHER_STATE_FILE = "state"


class ExitedReason(Enum):
    """The reason why a trial ended before it did all that was asked of it."""

    ERRORED = "ERRORED"
    USER_CANCELED = "USER_CANCELED"
    INVALID_HP = "INVALID_HP"

    @classmethod
    def from_cluster(cls, reason: str) -> ExitedReason:
        """The reason for the cluster's finer one: a trial that stops itself counts as canceled."""
        if reason == "ERRORED":
            return cls.ERRORED
        return cls.INVALID_HP if "INVALID_HP" in reason else cls.USER_CANCELED


@dataclass
class SearcherState:
    """The facts of a search that the runner counts for the method, which only reads them.

    `trial_progress` is each trial's training so far, in the unit of the search; one with invalid
    hyperparameters has none.
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
        """The state as plain JSON."""
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
        """Restore the state that `to_dict` gave."""
        self.failures = set(map(UUID, fields["failures"]))
        self.trial_progress = {UUID(k): v for k, v in fields["trialProgress"].items()}
        self.trials_closed = set(map(UUID, fields["trialsClosed"]))
        self.trials_created = set(map(UUID, fields["trialsCreated"]))
        self.last_event_id = fields["lastEventId"]
        self.experiment_id = fields["experimentId"]
        self.experiment_completed = fields["experimentCompleted"]
        self.experiment_failed = fields["experimentFailed"]


class SearchMethod(ABC):
    """A search algorithm, which answers each event with operations, in order.

    After a crash an event may come again, to the method as it was saved before that event; the
    operations of its first answer were not done then. So a method must change nothing but itself.
    """

    @abstractmethod
    def initial_operations(self, searcher_state: SearcherState) -> list[Operation]:
        """Called when the search begins."""

    @abstractmethod
    def on_trial_created(self, searcher_state: SearcherState, request_id: UUID) -> list[Operation]:
        """Called when a trial was made, as a Create asked for."""

    @abstractmethod
    def on_validation_completed(
        self, searcher_state: SearcherState, request_id: UUID, metric: Any, train_length: int
    ) -> list[Operation]:
        """Called when a trial validated at the length of a ValidateAfter.

        A metric that was no finite number comes as the worst one there is. What a script gave to
        `report_completed` in the place of a number, such as a dict, comes as it was.
        """

    @abstractmethod
    def on_trial_closed(self, searcher_state: SearcherState, request_id: UUID) -> list[Operation]:
        """Called when a trial has ended, early or not: once for each trial, as its last event."""

    @abstractmethod
    def on_trial_exited_early(
        self, searcher_state: SearcherState, request_id: UUID, exited_reason: ExitedReason
    ) -> list[Operation]:
        """Called when a trial ended before it did all that was asked; `on_trial_closed` follows."""

    @abstractmethod
    def progress(self, searcher_state: SearcherState) -> float:
        """The share of the search that is done, in [0, 1]."""

    def save(self, searcher_state: SearcherState, path: Path, *, experiment_id: int) -> None:
        """Write both states into the folder `path`: the search's as `state`, then the method's."""
        fields = {**searcher_state.to_dict(), "experimentId": experiment_id}
        (path / SEARCHER_STATE_FILE).write_text(json.dumps(fields), encoding="utf-8")
        self.save_method_state(path)

    def load(self, path: Path) -> tuple[SearcherState, int]:
        """Restore what `save` wrote; the state of the search, and the experiment's id."""
        searcher_state = SearcherState()
        file = path / SEARCHER_STATE_FILE
        searcher_state.from_dict(json.loads(file.read_text(encoding="utf-8")))
        self.load_method_state(path)
        return searcher_state, searcher_state.experiment_id or 0

    def save_method_state(self, path: Path) -> None:
        """Write the method's state, by default its pickled attributes, into the folder `path`."""
        try:
            (path / STATE_FILE).write_bytes(pickle.dumps(vars(self)))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise DetcloudError(
                f"{type(self).__name__} cannot be pickled ({error}); give it save_method_state "
                "and load_method_state of its own"
            ) from error

    def load_method_state(self, path: Path) -> None:
        """Restore from the folder `path` the state that `save_method_state` wrote."""
        vars(self).update(pickle.loads((path / STATE_FILE).read_bytes()))
