"""The handle of a schedule."""

from __future__ import annotations

from typing import Any

from detcloud.client.resource import Field, Resource


class Schedule(Resource):
    """A schedule, which submits experiments at fixed times."""

    id = Field[int]("The id.")
    name = Field[str]("The name of the experiments.")
    user = Field[str]("The owner of the schedule and of the experiments.")
    cron = Field[str]("The times, as a cron expression.")
    time_zone = Field[str]("The time zone of the expression.")
    overlap = Field[str]("`skip` or `allow`, for times at which the last experiment still runs.")
    catch_up = Field[bool]("Whether an experiment is submitted after missed times.")
    paused = Field[bool]("Whether the schedule submits no experiments.")
    created_ms = Field[int]("The time of the creation, in epoch milliseconds.")
    next_ms = Field[int | None]("The next time, in epoch milliseconds; None if paused.")
    last_experiment_id = Field[int | None]("The id of the last submitted experiment, or None.")
    runs = Field[list[dict[str, Any]]](
        "The last runs, the newest first: `time_ms`, `outcome`, `experiment_id` and `text`."
    )

    @property
    def warnings(self) -> list[str]:
        """The cluster's warnings about the submission, for a schedule that was just created."""
        found: list[str] = self.data.get("warnings", [])
        return found

    def refresh(self) -> None:
        """Read all fields of this handle from the cluster again, and the submitted `config`."""
        self.data = self._client.get(schedule_path(self.id))

    def pause(self) -> None:
        """Submit no more experiments, and update this handle. Running experiments continue."""
        self.data = self._client.post(f"{schedule_path(self.id)}/pause")

    def activate(self) -> None:
        """Submit experiments from the next time on, and update this handle."""
        self.data = self._client.post(f"{schedule_path(self.id)}/activate")

    def run_now(self) -> int:
        """Submit an experiment at once, update this handle, and return the experiment's id."""
        self.data = self._client.post(f"{schedule_path(self.id)}/run")
        experiment_id: int = self.data["last_experiment_id"]
        return experiment_id

    def delete(self) -> None:
        """Delete the schedule. Submitted experiments are kept."""
        self._client.delete(schedule_path(self.id))


def schedule_path(schedule_id: int) -> str:
    """Return the path of a schedule below /api/v1."""
    return f"/schedules/{schedule_id}"
