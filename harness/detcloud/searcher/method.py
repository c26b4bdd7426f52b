"""The base class of search methods, and the search state that each hook receives."""

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
    """The reason why a trial ended before all requested work was done."""

    ERRORED = "ERRORED"
    """The trial failed more often than `max_restarts` allows."""
    USER_CANCELED = "USER_CANCELED"
    """The trial's own code or a user stopped the trial."""
    INVALID_HP = "INVALID_HP"
    """The trial's code refused the hyperparameters."""

    @classmethod
    def from_cluster(cls, reason: str) -> ExitedReason:
        """Return the reason that corresponds to the cluster's more detailed `reason`.

        Every reason other than an error or invalid hyperparameters counts as USER_CANCELED.
        """
        if reason == "ERRORED":
            return cls.ERRORED
        return cls.INVALID_HP if "INVALID_HP" in reason else cls.USER_CANCELED


@dataclass
class SearcherState:
    """The facts of a search that the runner records. Methods must not change them."""

    failures: set[UUID] = field(default_factory=set)
    """The trials that ended with an error."""
    trial_progress: dict[UUID, float] = field(default_factory=dict)
    """The training of each trial so far, in the unit of the search.

    A trial with invalid hyperparameters has no entry.
    """
    trials_closed: set[UUID] = field(default_factory=set)
    """The trials that have ended."""
    trials_created: set[UUID] = field(default_factory=set)
    """The trials that the cluster has created."""
    last_event_id: int = 0
    """The id of the last event."""
    experiment_id: int | None = None
    """The id of the experiment; None before the experiment exists."""
    experiment_completed: bool = False
    """Whether the experiment has ended as COMPLETED."""
    experiment_failed: bool = False
    """Whether the experiment has ended as ERROR."""

    def to_dict(self) -> dict[str, Any]:
        """Return the state as plain JSON data."""
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
        """Replace every attribute of this state by the values of an earlier `to_dict`.

        Args:
            fields: a result of `to_dict`.

        Raises:
            KeyError: a field is missing.
        """
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

    After a crash, an event may be repeated. The method is then restored to its state before the
    event, and the operations of the first answer were not carried out. A method must therefore not
    change anything outside itself.
    """

    @abstractmethod
    def initial_operations(self, searcher_state: SearcherState) -> list[Operation]:
        """Return the operations with which the search begins. Called once.

        Args:
            searcher_state: the facts of the search.
        """

    @abstractmethod
    def on_trial_created(self, searcher_state: SearcherState, request_id: UUID) -> list[Operation]:
        """Return the operations that follow the creation of a trial by a Create.

        Args:
            searcher_state: the facts of the search.
            request_id: the UUID of the trial's Create.
        """

    @abstractmethod
    def on_validation_completed(
        self, searcher_state: SearcherState, request_id: UUID, metric: Any, train_length: int
    ) -> list[Operation]:
        """Return the operations that follow a validation at the length of a ValidateAfter.

        Args:
            searcher_state: the facts of the search.
            request_id: the UUID of the trial's Create.
            metric: the argument of `operation.complete`. A number that is not finite arrives as the
                worst possible number. Other values, such as a dict, arrive unchanged.
            train_length: the length of the ValidateAfter, in the search's unit.
        """

    @abstractmethod
    def on_trial_closed(self, searcher_state: SearcherState, request_id: UUID) -> list[Operation]:
        """Return the operations that follow the end of a trial, early or not.

        Called once for each trial, as the trial's last event.

        Args:
            searcher_state: the facts of the search.
            request_id: the UUID of the trial's Create.
        """

    @abstractmethod
    def on_trial_exited_early(
        self, searcher_state: SearcherState, request_id: UUID, exited_reason: ExitedReason
    ) -> list[Operation]:
        """Return the operations that follow the end of a trial before all requested work is done.

        `on_trial_closed` is called next.

        Args:
            searcher_state: the facts of the search.
            request_id: the UUID of the trial's Create.
            exited_reason: the reason of the end.
        """

    @abstractmethod
    def progress(self, searcher_state: SearcherState) -> float:
        """Return the completed part of the search, in [0, 1].

        Args:
            searcher_state: the facts of the search.
        """

    def save(self, searcher_state: SearcherState, path: Path, *, experiment_id: int) -> None:
        """Write the search's state as the file `state`, and the method's state, into a folder.

        Args:
            searcher_state: the facts of the search.
            path: the folder.
            experiment_id: the id of the experiment.
        """
        fields = {**searcher_state.to_dict(), "experimentId": experiment_id}
        (path / SEARCHER_STATE_FILE).write_text(json.dumps(fields), encoding="utf-8")
        self.save_method_state(path)

    def load(self, path: Path) -> tuple[SearcherState, int]:
        """Restore the method from the folder that `save` wrote.

        Return the search's state and the experiment's id, 0 if the id is unknown.

        Args:
            path: the folder.
        """
        searcher_state = SearcherState()
        file = path / SEARCHER_STATE_FILE
        searcher_state.from_dict(json.loads(file.read_text(encoding="utf-8")))
        self.load_method_state(path)
        return searcher_state, searcher_state.experiment_id or 0

    def save_method_state(self, path: Path) -> None:
        """Write the method's state into a folder, by default the pickled attributes.

        Args:
            path: the folder.

        Raises:
            DetcloudError: an attribute cannot be pickled.
        """
        try:
            (path / STATE_FILE).write_bytes(pickle.dumps(vars(self)))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise DetcloudError(
                f"{type(self).__name__} cannot be pickled ({error}); give it save_method_state "
                "and load_method_state of its own"
            ) from error

    def load_method_state(self, path: Path) -> None:
        """Unpickle the file that `save_method_state` wrote, and set the attributes. Other
        attributes stay.

        Errors of pickle are raised unchanged, for example if a class has changed.

        Args:
            path: the folder.

        Raises:
            OSError: the file cannot be read.
        """
        vars(self).update(pickle.loads((path / STATE_FILE).read_bytes()))
