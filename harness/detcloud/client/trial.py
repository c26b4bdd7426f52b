"""A handle on one trial."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcloud.client.checkpoint import Checkpoint
from detcloud.client.log import LogCursor, LogFilter, read_lines
from detcloud.client.records import (
    Allocation,
    Damage,
    EventFile,
    LogLine,
    Loss,
    MetricReport,
    MetricSummary,
    Series,
)
from detcloud.client.resource import Field, Resource

if TYPE_CHECKING:
    from detcloud.client.experiment import Experiment

LOG_CHUNK_BYTES = 1 << 20


class Trial(Resource):
    """One training with one set of hyperparameters."""

    id = Field[int]("The id, unique in the cluster.")
    experiment_id = Field[int]("The experiment it belongs to.")
    number = Field[int]("Its place within the experiment, from 0.")
    state = Field[str]("ACTIVE, PAUSED, STOPPING_..., COMPLETED, CANCELED or ERROR.")
    hparams = Field[dict[str, Any]]("The hyperparameters sampled for it.")
    seed = Field[int]("The seed of its random numbers.")
    steps_completed = Field[int]("Batches trained so far; its checkpoint's while it does not run.")
    target_steps = Field[int]("Batches it was asked to train so far.")
    target_epochs = Field[int | None](
        "Epochs it was asked to train so far, where it alone knows how many batches they have."
    )
    epochs_completed = Field[float | None](
        "Epochs that it has reported to be done, where it alone knows how many batches they have."
    )
    metric = Field[float | None]("The searcher's metric at its latest validation.")
    best_metric = Field[float | None]("The best validation's.")
    restarts = Field[int]("How often it failed; the failure beyond max_restarts ends it.")
    losses = Field[int]("How often its machine or agent was lost, which is no failure.")
    recent_losses = Field[list[Loss]]("The last few losses, the oldest first.")
    recent_damages = Field[list[Damage]](
        "The last few damaged checkpoints that runs began from, the oldest first."
    )
    latest_checkpoint = Field[str | None]("The UUID it would go on from.")
    warm_start = Field[str | None]("The UUID of another trial's checkpoint it started from.")
    allocation = Field[Allocation | None]("Where it runs or waits to run; None when neither.")
    created_ms = Field[int]("When it was created, epoch milliseconds.")
    ended_ms = Field[int | None]("When it ended, epoch milliseconds.")
    message = Field[str | None]("Why it is in this state, where that needs saying.")
    exit_code = Field[int | None]("Of a command's program, once that has ended by itself.")
    metadata = Field[dict[str, Any]]("What its code and users have set; lists leave it out.")

    @property
    def has_ended(self) -> bool:
        """Whether nothing more comes of the trial."""
        return self.state in ("COMPLETED", "CANCELED", "ERROR")

    # The name that scripts know.
    ended = has_ended

    def refresh(self) -> None:
        """Asks the cluster for the present state."""
        self.data = self._client.get(f"/trials/{self.id}")

    def kill(self) -> None:
        """Ends the trial at once; the search goes on without it."""
        self.data = self._client.post(f"/trials/{self.id}/kill")

    def set_metadata(
        self, metadata: Mapping[str, Any], *, expected_revision: str | None = None
    ) -> None:
        """Replaces its metadata: 16 KiB as JSON at most. Keys that its code has set, and that you
        change or remove, stay so, whatever the code sets later.

        Args:
            expected_revision: the `metadata_revision` that it has to have still.

        Raises:
            detcloud.shared.http.ApiError: `conflict`, where it has another one.
        """
        body = {"metadata": dict(metadata), "revision": expected_revision}
        self.data = self._client.patch(f"/trials/{self.id}", body)

    def upload_checkpoint(
        self,
        directory: str | Path,
        metadata: Mapping[str, Any] | None = None,
        *,
        steps_completed: int | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Checkpoint:
        """Stores a folder's files as a new checkpoint of this trial, from outside of its training.

        The trial does not go on from it, and no `save_*` setting counts it; it goes with the
        experiment. Files that were sent by a call that was cut short are not sent again, and files
        that are a checkpoint of the trial already are that one. `on_progress` gets the bytes that
        are there and the bytes in all.

        Raises:
            DetcloudError: no such folder, a link or too many files in it, or a file that is larger
                than the store takes; the experiment is somebody else's.
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

    def metrics(
        self, group: str | None = None, *, rank: int | None = None
    ) -> Iterator[MetricReport]:
        """Every report, by group (`training`, `validation`) and then in the order of reporting.

        Args:
            rank: of a process other than the chief, for what it reported beside the trial's own.
        """
        place = f"/trials/{self.id}/metrics"
        return self._client.records(place, MetricReport, group=group, rank=rank)

    def metric_summaries(self) -> list[MetricSummary]:
        """Every number it reported, with count, last, minimum, maximum and mean."""
        answer = self._client.get(f"/trials/{self.id}/metrics/names")
        items: list[MetricSummary] = answer["items"]
        return items

    def metric_ranks(self) -> list[int]:
        """The ranks whose metrics are kept apart from the trial's own, for `metrics`."""
        ranks: list[int] = self._client.get(f"/trials/{self.id}/metrics/ranks")["items"]
        return ranks

    def series(
        self,
        names: Sequence[str] = (),
        *,
        group: str | None = None,
        points_max: int | None = None,
    ) -> list[Series]:
        """Curves of `names`, of all numbers of the group (20 at most) by default.

        Args:
            points_max: points of a curve after thinning, 3 to 2,000; 500 by default.
        """
        answer = self._client.get(
            f"/trials/{self.id}/metrics/series", group=group, name=list(names), points=points_max
        )
        series: list[Series] = answer["series"]
        return series

    def event_files(self) -> list[EventFile]:
        """The files for TensorBoard that it wrote, with addresses that serve them for 15 minutes.

        `detcloud.client.event_files.EventFolder` downloads them, and later what came meanwhile.
        """
        return list(self._client.records(f"/trials/{self.id}/event-files", EventFile))

    def checkpoints(self) -> Iterator[Checkpoint]:
        """The trial's checkpoints, in the order of storing."""
        items = self._client.items(f"/trials/{self.id}/checkpoints")
        return (Checkpoint(self._client, item) for item in items)

    def log_chunk(self, after: int = 0, tail_bytes: int | None = None) -> dict[str, Any]:
        """`{text, next, complete}`: the log from byte `after` on, or its last `tail_bytes`."""
        query = {"limit_bytes": LOG_CHUNK_BYTES}
        query |= {"after": after} if tail_bytes is None else {"tail_bytes": tail_bytes}
        chunk: dict[str, Any] = self._client.get(f"/trials/{self.id}/logs", **query)
        return chunk

    def logs(
        self,
        *,
        follow: bool = False,
        polling_seconds: float = 1.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Iterator[str]:
        """Pieces of the log's text in order; with `follow`, until the trial has ended."""
        offset = 0
        while True:
            chunk = self.log_chunk(offset)
            if chunk["text"]:
                yield chunk["text"]
            moved = chunk["next"] > offset
            offset = chunk["next"]
            if moved:
                continue
            if chunk["complete"] or not follow:
                return
            sleep(polling_seconds)

    def log_lines(
        self,
        wanted: LogFilter | None = None,
        *,
        follow: bool = False,
        polling_seconds: float = 1.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Iterator[LogLine]:
        """Lines of the log with time, rank and level; with `follow`, until the trial has ended."""
        pause = (lambda: sleep(polling_seconds)) if follow else None
        return read_lines(self.log_cursor(wanted), pause)

    def experiment(self) -> Experiment:
        """The experiment it belongs to."""
        return self._client.experiment(self.experiment_id)

    def log_cursor(self, wanted: LogFilter | None = None) -> LogCursor:
        """Reads the lines of `log_lines` bit by bit, to follow several trials at once."""
        return LogCursor(self._client, self.id, wanted or LogFilter())
