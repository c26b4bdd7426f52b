"""Forks of experiments: the request, the preview of the changes, and the expected time and cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from typing import TYPE_CHECKING, Any, Final

from detcloud.client.config_text import read_config_text
from detcloud.client.fork_records import Pace
from detcloud.client.resource import path_segment
from detcloud.shared.http import ApiError
from detcloud.shared.yaml_writer import render_yaml

if TYPE_CHECKING:
    from detcloud.client.requester import Requester

# The cluster simulates at most this many slots.
SIMULATED_SLOTS_MAX: Final = 10_000
# Values that a configuration section has if the user did not set it.
_UNSTATED: Final[tuple[object, ...]] = (None, "", [], {})


@dataclass(frozen=True)
class ForkPreview:
    """A fork that the cluster has checked, but not created."""

    original_id: int
    """The id of the experiment that would be forked."""
    before: Mapping[str, Any]
    """The submitted configuration of the original, with secrets masked."""
    after: Mapping[str, Any]
    """The submitted configuration of the fork, with secrets masked."""
    overrides: Sequence[str]
    """The changes that make `after` from `before`."""
    resource_pool: str
    """The name of the fork's resource pool."""
    slots_per_trial: int
    """The slots of each trial."""
    warnings: Sequence[str]
    """The warnings of the cluster; empty without any."""

    def diff(self) -> str:
        """Return the changes of the configuration as a unified diff of YAML. Return "" without a
        change.
        """
        lines = unified_diff(
            render_yaml(dict(self.before)).splitlines(keepends=True),
            render_yaml(dict(self.after)).splitlines(keepends=True),
            f"experiment {self.original_id}",
            "fork",
        )
        return "".join(lines)


@dataclass(frozen=True)
class ForkEstimate:
    """The expected training, time and cost of a fork."""

    trials: int | None = None
    """The number of trials; None if the search cannot be previewed."""
    units: float | None = None
    """The training of all trials in `unit`; None if the search cannot be previewed."""
    unit: str = ""
    """The unit of training, such as `batches`."""
    slots: int | None = None
    """The number of slots on which the search was simulated."""
    seconds: float | None = None
    """The duration of the search on these slots; None if unknown."""
    cost: float | None = None
    """The cost in dollars; None if unknown."""
    notes: Sequence[str] = ()
    """The reasons of unknown values, and limits of the estimate."""
    pace: Pace | None = None
    """The measured pace of the original; None for a search that cannot be previewed."""


def submitted_config(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the submitted configuration of an experiment's answer, with secrets masked.

    A cluster of an older version sends the whole configuration. Then top-level settings that are
    null or empty are left out.
    """
    if submitted := data.get("submitted_config"):
        return dict(submitted)
    return {name: value for name, value in data["config"].items() if value not in _UNSTATED}


def fork_request(
    data: Mapping[str, Any], overrides: Sequence[str], model_code: str, *, paused: bool
) -> dict[str, Any]:
    """Return the body of the request that creates a fork.

    Args:
        data: the fields of the original, with its configuration.
        overrides: changes of the configuration as `a.b=value`.
        model_code: the SHA-256 of the fork's code.
        paused: whether the fork starts paused.
    """
    body = {
        "config": read_config_text(submitted_config(data)),
        "overrides": list(overrides),
        "model_code": model_code,
        "paused": paused,
        "test_mode": False,
        "validate_only": False,
    }
    # A cluster of an older version refuses the unknown field.
    return {**body, "forked_from": data["id"]} if "submitted_config" in data else body


def preview_fork(
    client: Requester, data: Mapping[str, Any], overrides: Sequence[str]
) -> ForkPreview:
    """Let the cluster check a fork, and return the configurations before and after. Nothing is
    created.

    Args:
        client: the connection to the cluster.
        data: the fields of the original, with its configuration.
        overrides: changes of the configuration as `a.b=value`.

    Raises:
        ApiError: the cluster refused the configuration; `details` has each problem.
        Unreachable: the cluster does not answer.
    """
    request = fork_request(data, overrides, data["code_sha256"], paused=False)
    answer = client.post("/experiments", {**request, "validate_only": True})
    resources = answer["config"].get("resources") or {}
    return ForkPreview(
        data["id"],
        submitted_config(data),
        submitted_config(answer),
        list(overrides),
        answer["resource_pool"],
        resources.get("slots_per_trial") or 1,
        answer["warnings"],
    )


def estimate_fork(client: Requester, preview: ForkPreview, pace: Pace) -> ForkEstimate:
    """Return the expected training, time and cost of a fork, by the pace of the original.

    The cluster simulates the search on the slots of the pool. A search that cannot be previewed has
    an estimate with the reason in `notes`.

    Args:
        client: the connection to the cluster.
        preview: the checked fork.
        pace: the measured pace of the original.

    Raises:
        ApiError: the cluster refused a request for another reason.
        Unreachable: the cluster does not answer.
    """
    pool = client.get(f"/resource-pools/{path_segment(preview.resource_pool)}")
    slots = min(max(pool["slots"], preview.slots_per_trial), SIMULATED_SLOTS_MAX)
    # Not the configuration of the fork, which masks the secrets in the overrides.
    body: dict[str, Any] = {
        "config": read_config_text(preview.before),
        "overrides": list(preview.overrides),
        "slots": slots,
    }
    if pace["seconds_per_unit"]:
        body["seconds_per_unit"] = pace["seconds_per_unit"]
    try:
        search = client.post("/search-previews", body)
    except ApiError as error:
        if error.code not in ("invalid", "unavailable"):
            raise
        return ForkEstimate(notes=[f"the search cannot be previewed: {error.message}"])
    simulated = search["estimate"]
    units = simulated["units"] if simulated else search["units"]
    notes = _notes(preview, pace, search["unit"])
    if not simulated and search["estimate_missing"]:
        notes.append(f"the time is not known: {search['estimate_missing']}")
    is_comparable = pace["unit"] == search["unit"]
    seconds = _expected_seconds(simulated, pace) if simulated and is_comparable else None
    is_priced = pace["cost_per_unit"] is not None and is_comparable
    return ForkEstimate(
        trials=search["trials"],
        units=units,
        unit=search["unit"],
        slots=slots,
        seconds=seconds,
        cost=units * (pace["cost_per_unit"] or 0.0) if is_priced else None,
        notes=notes,
        pace=pace,
    )


def _expected_seconds(simulated: Mapping[str, Any], pace: Pace) -> float | None:
    """Return the duration of a simulated search at the measured pace. Return None without a pace.

    The simulation varies the speed of trials. The duration is scaled so that the time of all slots
    is that of the measured pace.
    """
    if not pace["seconds_per_unit"] or not simulated["slot_seconds"]:
        return None
    measured = simulated["units"] * pace["seconds_per_unit"] * simulated["slots_per_trial"]
    seconds: float = simulated["makespan_seconds"] * measured / simulated["slot_seconds"]
    return seconds


def _notes(preview: ForkPreview, pace: Pace, unit: str) -> list[str]:
    """Return the reasons why the original's pace is unknown or differs from the fork's."""
    original = f"experiment {preview.original_id}"
    if pace["missing"]:
        return [f"the pace of {original} is not known: {pace['missing']}"]
    if pace["unit"] != unit:
        return [
            f"time and cost are not known: {original} counts {pace['unit']}, the fork counts {unit}"
        ]
    if pace["slots_per_trial"] != preview.slots_per_trial:
        return [
            f"{original} was measured with {pace['slots_per_trial']} slots per trial, the fork has "
            f"{preview.slots_per_trial}"
        ]
    return []
