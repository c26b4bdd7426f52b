"""The handle of a resource pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcloud.client.config_text import read_config_text
from detcloud.client.replacement_records import ReplacementSums
from detcloud.client.resource import Field, Resource, path_segment

if TYPE_CHECKING:
    from detcloud.client.requester import Requester


class ResourcePool(Resource):
    """A pool of agents with a queue of jobs.

    The fields are those of the cluster's latest answer to this handle.
    """

    name = Field[str]("The name of the pool.")
    description = Field[str]("The free-form description for users; empty without one.")
    scheduler = Field[dict[str, Any]](
        "The scheduler's settings: type, preemption, fitting_policy and more."
    )
    state = Field[str](
        "The state: OPEN, DRAINING if the pool starts no more trials, OVER_BUDGET, or QUIET_HOURS."
    )
    quiet_until_ms = Field[int | None](
        "The end of the present quiet hours in epoch ms; None outside of quiet hours."
    )
    next_quiet_ms = Field[int | None](
        "The begin of the next quiet hours in epoch ms; None for a pool without quiet hours."
    )
    slots = Field[int]("The number of usable slots on the pool's agents.")
    free_slots = Field[int]("The number of usable slots without an allocation.")
    agents = Field[int]("The number of agents in the pool.")
    running = Field[int]("The number of trials with slots.")
    queued = Field[int]("The number of trials that wait for slots.")
    waits = Field[str](
        "The reason for the wait of the first trial in the queue; empty if no trial waits."
    )
    offerings = Field[list[dict[str, Any]]](
        "The cheapest instances that the pool would launch, with prices; may be empty."
    )
    config = Field[dict[str, Any]]("All settings, in the form of the cluster configuration file.")

    def set(self, config: dict[str, Any] | None = None, *, overrides: Sequence[str] = ()) -> None:
        """Change the pool's settings, and update this handle. Admins only.

        Args:
            config: all settings, which replace the present settings. None for the present settings.
            overrides: changes of the settings as `a.b=value`, with values in YAML.

        Raises:
            DetcloudError: the mapping is no plain JSON.
        """
        self.data = put_pool(self._client, self.name, config, overrides)

    def drain(self) -> None:
        """Refuse new jobs and start no more trials. Running trials can finish. Admins only."""
        self._act("drain")

    def undrain(self) -> None:
        """Accept new jobs and start trials again. Admins only."""
        self._act("undrain")

    def remove(self) -> None:
        """Remove the pool. The cluster refuses if the pool has jobs, agents or instances. Admins
        only.
        """
        self._client.delete(pool_path(self.name))

    def replacements(self, days: int = 30) -> ReplacementSums:
        """Return the time in which trials of the pool did not train after a loss of slots.

        Args:
            days: the sums cover the replacements that ended in so many days, at most 90.
        """
        sums: ReplacementSums = self._client.get(f"{pool_path(self.name)}/replacements", days=days)
        return sums

    def _act(self, verb: str) -> None:
        self.data = self._client.post(f"{pool_path(self.name)}/{verb}")


def pool_path(name: str) -> str:
    """Return the pool's path below /api/v1. Raises DetcloudError for an impossible name."""
    return f"/resource-pools/{path_segment(name)}"


def put_pool(
    client: Requester,
    name: str,
    config: str | Path | Mapping[str, Any] | None,
    overrides: Sequence[str],
) -> dict[str, Any]:
    """Create or change a pool, and return the API's pool. Admins only.

    Args:
        name: the pool's name.
        config: all fields of the pool: the path of a YAML file, or a mapping. None for the pool's
            present fields, or for no fields of a new pool.
        overrides: changes of these fields as `a.b=value`, with values in YAML.

    Raises:
        DetcloudError: the file cannot be read, the mapping is no plain JSON, or the name is
            impossible.
    """
    text = None if config is None else read_config_text(config)
    body = {"config": text, "overrides": list(overrides)}
    pool: dict[str, Any] = client.put(pool_path(name), body)
    return pool
