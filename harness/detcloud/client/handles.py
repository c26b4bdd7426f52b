"""The handles of experiments, trials and checkpoints.

An experiment returns trials, and a trial returns its experiment. A single module therefore has the
methods of handles that return other handles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcloud.client.checkpoint import CheckpointHandle
from detcloud.client.curves import RecordedCurves, read_curves
from detcloud.client.experiment import ExperimentHandle
from detcloud.client.ranking import rank_checkpoints
from detcloud.client.resource import metadata_filters, path_segment
from detcloud.client.trial import TrialHandle

if TYPE_CHECKING:
    from detcloud.client.forks import ForkEstimate, ForkPreview
    from detcloud.client.requester import Requester


class Checkpoint(CheckpointHandle):
    """A folder of files that a trial stored, or that a user uploaded.

    The fields are those of the cluster's latest answer to this handle. A method that changes the
    checkpoint also updates the fields. Changes of another user's checkpoint, except pins, are
    refused with an ApiError (`forbidden`).
    """

    def trial(self) -> Trial:
        """Read the checkpoint's trial from the cluster, and return the trial.

        Every checkpoint belongs to a trial, also a checkpoint that a user uploaded.
        """
        return read_trial(self._client, self.trial_id)

    def experiment(self) -> Experiment:
        """Read the trial's experiment from the cluster, and return the experiment."""
        return read_experiment(self._client, self.experiment_id)


class Trial(TrialHandle):
    """A training run with fixed hyperparameters.

    The fields are those of the cluster's latest answer to this handle. A method that changes the
    trial also updates the fields. Changes of another user's trial are refused with an ApiError
    (`forbidden`).
    """

    def upload_checkpoint(
        self,
        directory: str | Path,
        metadata: Mapping[str, Any] | None = None,
        *,
        steps_completed: int | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Checkpoint:
        """Upload a folder's files as a new checkpoint of this trial, and return the checkpoint.

        The trial does not resume from the checkpoint, and no `save_*` setting counts or deletes it.
        Deleting the experiment deletes the checkpoint. A repeated call sends only the files that
        are missing. If the trial already has a checkpoint with this content, that checkpoint is
        returned.

        Args:
            directory: the folder.
            metadata: values that are added to those of the folder's `metadata.json` and replace
                them.
            steps_completed: None for the value in `metadata.json`, or 0.
            on_progress: called with the bytes that are stored and the total bytes.

        Raises:
            DetcloudError: the folder is missing or empty, or contains a link, a special file or too
                many files; a file is too large for the store; or the experiment is another user's.
        """
        from detcloud.client.checkpoint_upload import upload_checkpoint

        data = upload_checkpoint(
            self._client,
            self.id,
            Path(directory),
            steps_completed=steps_completed,
            metadata=metadata or {},
            on_progress=on_progress,
        )
        return Checkpoint(self._client, data)

    def checkpoints(self) -> Iterator[Checkpoint]:
        """Return an iterator over the trial's checkpoints, in the order of storing."""
        items = self._client.items(f"/trials/{self.id}/checkpoints")
        return (Checkpoint(self._client, item) for item in items)

    def experiment(self) -> Experiment:
        """Read the trial's experiment from the cluster, and return the experiment."""
        return read_experiment(self._client, self.experiment_id)


class Experiment(ExperimentHandle):
    """A search over hyperparameters, with trials and results.

    The fields are those of the cluster's latest answer to this handle. A method that changes the
    experiment also updates the fields. The cluster refuses a change with an ApiError: `conflict` if
    the state does not allow the change, `forbidden` for another user's experiment.
    """

    def fork(
        self,
        overrides: Sequence[str] = (),
        *,
        model_dir: str | Path | None = None,
        paused: bool = False,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Experiment:
        """Create a new experiment with the code and the submitted configuration of this experiment.

        Settings that this experiment did not set have their present defaults. Both experiments
        become a `family`. `preview_fork` shows the changes beforehand.

        Args:
            overrides: changes of the configuration, such as `searcher.max_trials=8`. A stored
                configuration masks secrets, so pass the new experiment's secrets here.
            model_dir: the folder with other code, or one file. None for the code of this
                experiment.
            paused: create the new experiment in state PAUSED.
            on_progress: called during an upload with the bytes sent and the total bytes.

        Raises:
            detcloud.shared.http.ApiError: the cluster refused the configuration.
            DetcloudError: the code cannot be read or packed.
        """
        from detcloud.client.forks import fork_request

        self._load_config()
        code = self.code_sha256
        if model_dir is not None:
            from detcloud.client.upload import send_model_code

            code = send_model_code(self._client, model_dir, (), on_progress)
        body = fork_request(self.data, overrides, code, paused=paused)
        return Experiment(self._client, self._client.post("/experiments", body))

    def preview_fork(self, overrides: Sequence[str] = ()) -> ForkPreview:
        """Let the cluster check a fork, and return both configurations. Nothing is created.

        Args:
            overrides: changes of the configuration, such as `searcher.max_trials=8`.

        Raises:
            detcloud.shared.http.ApiError: the cluster refused the configuration; `details` has each
                problem.
        """
        from detcloud.client.forks import preview_fork

        self._load_config()
        return preview_fork(self._client, self.data, overrides)

    def estimate_fork(self, preview: ForkPreview) -> ForkEstimate:
        """Return the expected training, time and cost of a fork of this experiment.

        Time and cost follow from the measured `pace` of this experiment.

        Args:
            preview: the result of `preview_fork`.
        """
        from detcloud.client.forks import estimate_fork

        return estimate_fork(self._client, preview, self.pace())

    def trials(
        self,
        limit: int | None = None,
        *,
        metadata: Mapping[str, object] | Sequence[str] | None = None,
        states: Sequence[str] = (),
    ) -> Iterator[Trial]:
        """Return an iterator over the trials, by trial number.

        Args:
            limit: the most trials; None for all.
            metadata: only trials whose code has set these values, by path, such as
                `{"data.version": 3}` or `["data.version=3"]`.
            states: only trials in one of these states: conditions such as `failed`, or stored
                states such as `ERROR`.
        """
        wanted = metadata_filters(metadata)
        state = ",".join(states) or None
        items = self._client.items(self._path("trials"), limit, metadata=wanted, state=state)
        return (Trial(self._client, item) for item in items)

    def checkpoints(self) -> Iterator[Checkpoint]:
        """Return an iterator over the checkpoints of all trials. DELETED ones are included."""
        items = self._client.items(self._path("checkpoints"))
        return (Checkpoint(self._client, item) for item in items)

    def best_checkpoints(
        self, sort_by: str | None = None, smaller_is_better: bool | None = None
    ) -> list[Checkpoint]:
        """Return the COMPLETED checkpoints that have a finite value of the metric, the best first.

        Equal values are in the order of storing. For another metric than the searcher's, read the
        validation reports of every trial with a COMPLETED checkpoint from the cluster.

        Args:
            sort_by: the name of a validation metric; None for the searcher's metric.
            smaller_is_better: whether small values are best; None for the searcher's setting.

        Raises:
            DetcloudError: `sort_by` is not the searcher's metric, and `smaller_is_better` is None.
        """
        return rank_checkpoints(self, list(self.checkpoints()), sort_by, smaller_is_better)

    def curves(self, on_trial: Callable[[int], None] = lambda read: None) -> RecordedCurves:
        """Read every trial's validations and speed, for `detcloud simulate --curves`.

        Args:
            on_trial: called after each trial with the number of trials read so far.
        """
        return read_curves(self.trials(), self.metric, on_trial)


def read_experiment(client: Requester, experiment_id: int) -> Experiment:
    """Read the experiment with this id."""
    return Experiment(client, client.get(f"/experiments/{path_segment(experiment_id)}"))


def read_trial(client: Requester, trial_id: int) -> Trial:
    """Read the trial with this id."""
    return Trial(client, client.get(f"/trials/{path_segment(trial_id)}"))


def read_checkpoint(client: Requester, uuid_prefix: str) -> Checkpoint:
    """Read the only checkpoint with a UUID that begins with `uuid_prefix`."""
    return Checkpoint(client, client.get(f"/checkpoints/{path_segment(uuid_prefix)}"))
