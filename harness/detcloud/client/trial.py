"""The handle of a trial, without the methods that return other handles."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

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

LOG_CHUNK_BYTES = 1 << 20


class TrialHandle(Resource):
    """The fields of a trial, and the methods that return no other handle."""

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
        """Replace all metadata of the trial: at most 16 KiB as JSON.

        A top-level key that a user has set, changed or removed keeps that state, whatever the
        trial's code sets later. Other keys remain the code's.

        Args:
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

        Without `follow`, stop at the present end of the log. With `follow`, wait for more until the
        log is complete, with a pause of `polling_seconds` by `sleep` between two requests.
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
        """Return an iterator over the log's lines that match `wanted`, with time, rank and level.

        None matches all lines. Without `follow`, stop at the present end of the log. With `follow`,
        wait for more until the log is complete, with a pause of `polling_seconds` by `sleep`.
        """
        pause = (lambda: sleep(polling_seconds)) if follow else None
        return read_lines(self.log_cursor(wanted), pause)

    def log_cursor(self, wanted: LogFilter | None = None) -> LogCursor:
        """Return a cursor over the lines that match `wanted`, by default all lines.

        With a cursor for each trial, a program can follow several logs at once.
        """
        return LogCursor(self._client, self.id, wanted or LogFilter())
