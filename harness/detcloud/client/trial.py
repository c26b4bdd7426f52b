"""The handle of a trial, without the methods that return other handles."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from detcloud.client.log import LogCursor, LogFilter, read_lines
from detcloud.client.records import (
    Allocation,
    EventFile,
    LogLine,
    MetricReport,
    MetricSummary,
    Series,
)
from detcloud.client.replacement_records import Damage, LogMatch, Loss, Replacement
from detcloud.client.resource import Field, Resource

LOG_CHUNK_BYTES = 1 << 20


class TrialHandle(Resource):
    """The fields of a trial, and the methods that return no other handle."""

    id = Field[int]("The id, unique in the cluster.")
    experiment_id = Field[int]("The id of the trial's experiment.")
    number = Field[int]("The number of the trial in the experiment, from 0.")
    state = Field[str]("The state: ACTIVE, PAUSED, STOPPING_..., COMPLETED, CANCELED or ERROR.")
    condition = Field[str](
        "The word for the state as the page and the command line show it, such as queued, waiting "
        "at a rung or stopped by the search."
    )
    hparams = Field[dict[str, Any]]("The sampled hyperparameters of the trial.")
    seed = Field[int]("The seed of the trial's random numbers.")
    steps_completed = Field[int](
        "The number of batches trained; without a run, the number at the checkpoint."
    )
    target_steps = Field[int](
        "The number of batches to train to; None if only the epochs are known."
    )
    target_epochs = Field[int | None](
        "The number of epochs to train to; None if `target_steps` is set."
    )
    epochs_completed = Field[float | None](
        "The number of completed epochs; None if `target_steps` is set."
    )
    metric = Field[float | None](
        "The searcher's metric at the latest validation; None before the first validation."
    )
    best_metric = Field[float | None](
        "The best validation metric so far; None before the first validation."
    )
    restarts = Field[int](
        "The number of failures; the failure beyond `max_restarts` ends the trial."
    )
    counted_restarts = Field[int](
        "The failures that count against `max_restarts`: those within `restart_window` if it is "
        "set, else all."
    )
    losses = Field[int]("The number of lost machines and agents, which do not count as failures.")
    recent_losses = Field[list[Loss]]("The last few losses, the oldest first.")
    recent_damages = Field[list[Damage]](
        "The last few damaged checkpoints that runs began from, the oldest first."
    )
    signal = Field[str](
        "The signal of the log policy that matched last; empty if no policy with a signal matched."
    )
    log_matches = Field[list[LogMatch]](
        "The last few lines of logs that matched log policies, the oldest first."
    )
    retries_canceled = Field[str](
        "The log policy and the line after which failures are not retried; empty without a match."
    )
    excluded_agents = Field[list[str]](
        "The ids of the agents that runs avoid, because log policies excluded the agents."
    )
    replacements = Field[list[Replacement]](
        "The latest replacements of runs that lost their slots, the newest first; absent in lists."
    )
    latest_checkpoint = Field[str | None](
        "The UUID of the checkpoint to resume from; None without a checkpoint."
    )
    warm_start = Field[str | None](
        "The UUID of another trial's checkpoint at the start; None for a fresh start."
    )
    allocation = Field[Allocation | None]("The running or waiting allocation; None without one.")
    created_ms = Field[int]("The time of the creation, in epoch milliseconds.")
    ended_ms = Field[int | None]("The time of the end, in epoch milliseconds; None before the end.")
    message = Field[str | None](
        "The reason for the present state; empty if the state needs no reason."
    )
    exit_code = Field[int | None](
        "The exit code of a command's program that ended by itself; otherwise None."
    )
    logs_deleted_ms = Field[int | None](
        "The time at which the logs were deleted, in epoch milliseconds; None if they exist."
    )
    metrics_deleted_ms = Field[int | None](
        "The time at which detailed metrics were deleted, in epoch milliseconds; None if none were."
    )
    metadata = Field[dict[str, Any]](
        "The metadata from the training code and users; absent in lists."
    )

    @property
    def has_ended(self) -> bool:
        """Whether the state is COMPLETED, CANCELED or ERROR, by the cluster's latest answer."""
        return self.state in ("COMPLETED", "CANCELED", "ERROR")

    # Released scripts use this name.
    ended = has_ended

    def refresh(self) -> None:
        """Read all fields of this handle from the cluster again."""
        self.data = self._client.get(f"/trials/{self.id}")

    def kill(self) -> None:
        """End the trial, which has 15 seconds to store a checkpoint. The search continues."""
        self.data = self._client.post(f"/trials/{self.id}/kill")

    def set_metadata(
        self, metadata: Mapping[str, Any], *, expected_revision: str | None = None
    ) -> None:
        """Replace all metadata of the trial.

        A top-level key that a user has set, changed or removed keeps that state, whatever the
        trial's code sets later. Other keys remain the code's.

        Args:
            metadata: JSON data of at most 16 KiB.
            expected_revision: the `metadata_revision` that the change is based on. None replaces
                the metadata whatever has changed since.

        Raises:
            detcloud.shared.http.ApiError: `conflict`, if the trial has another revision.
        """
        body = {"metadata": dict(metadata), "revision": expected_revision}
        self.data = self._client.patch(f"/trials/{self.id}", body)

    def metrics(
        self, group: str | None = None, *, rank: int | None = None
    ) -> Iterator[MetricReport]:
        """Yield all reports, by group and then in the order of reporting.

        Args:
            group: only reports of this group, such as `training` or `validation`; None for all.
            rank: the process whose own reports to yield; None for the trial's reports, by rank 0.
        """
        place = f"/trials/{self.id}/metrics"
        return self._client.records(place, MetricReport, group=group, rank=rank)

    def metric_summaries(self) -> list[MetricSummary]:
        """Return the count, last value, minimum, maximum and mean of every numeric metric."""
        answer = self._client.get(f"/trials/{self.id}/metrics/names")
        items: list[MetricSummary] = answer["items"]
        return items

    def metric_ranks(self) -> list[int]:
        """Return the ranks that have reported metrics by themselves, for `metrics(rank=...)`."""
        ranks: list[int] = self._client.get(f"/trials/{self.id}/metrics/ranks")["items"]
        return ranks

    def series(
        self,
        names: Sequence[str] = (),
        *,
        group: str = "validation",
        points_max: int | None = None,
    ) -> list[Series]:
        """Return a curve for each name, or for all numeric metrics of the group if `names` is
        empty.

        Args:
            names: at most 20; without names at most 20 curves are returned.
            group: the metrics' group.
            points_max: the most points of a curve, 3 to 2,000; None for 500.
        """
        answer = self._client.get(
            f"/trials/{self.id}/metrics/series", group=group, name=list(names), points=points_max
        )
        series: list[Series] = answer["series"]
        return series

    def event_files(self) -> list[EventFile]:
        """Return the trial's TensorBoard files. Their URLs need no token and expire after 15
        minutes.

        `detcloud.client.event_files.EventFolder` downloads the files and keeps the copies up to
        date.
        """
        return list(self._client.records(f"/trials/{self.id}/event-files", EventFile))

    def log_chunk(
        self,
        after: int = 0,
        tail_bytes: int | None = None,
        *,
        limit_bytes: int = LOG_CHUNK_BYTES,
    ) -> dict[str, Any]:
        """Return a part of the log as `{text, next, complete}`.

        `text` ends with a whole character. `next` is the byte offset after `text`. `complete`: the
        log ends there, and no more will come.

        Args:
            after: the byte offset to begin at. Ignored with `tail_bytes`.
            tail_bytes: return the end of the log, of this many bytes.
            limit_bytes: the most bytes to return, 4 to 1,048,576.
        """
        query = {"limit_bytes": limit_bytes}
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
        """Yield pieces of the log's text in order, from the beginning.

        Args:
            follow: whether to wait for more until the log is complete. Otherwise stop at the
                present end.
            polling_seconds: the pause between two requests with `follow`.
            sleep: the function that pauses.
        """
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
        """Return an iterator over the log's lines, with time, rank and level.

        Args:
            wanted: the filter of lines; None for all lines.
            follow: whether to wait for more until the log is complete. Otherwise stop at the
                present end.
            polling_seconds: the pause between two requests with `follow`.
            sleep: the function that pauses.
        """
        pause = (lambda: sleep(polling_seconds)) if follow else None
        return read_lines(self.log_cursor(wanted), pause)

    def log_cursor(self, wanted: LogFilter | None = None) -> LogCursor:
        """Return a cursor over the lines that match `wanted`, by default all lines.

        With a cursor for each trial, a program can follow several logs at once.
        """
        return LogCursor(self._client, self.id, wanted or LogFilter())
