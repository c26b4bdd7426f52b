"""The words for the state of an experiment, trial, command, notebook or shell.

The cluster computes the words, and sends them as `condition` beside the stored `state`. Clusters of
earlier versions send the stored state alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from detcloud.cli.rendering.table import Column, Item

_WORDS: Mapping[str, str] = {
    "ACTIVE": "running",
    "PAUSED": "paused",
    "STOPPING_COMPLETED": "stopping",
    "STOPPING_CANCELED": "stopping",
    "STOPPING_KILLED": "stopping",
    "STOPPING_ERROR": "stopping",
    "COMPLETED": "finished",
    "CANCELED": "canceled",
    "ERROR": "failed",
    "DELETING": "deleting",
    "DELETE_FAILED": "deletion failed",
    "DELETED": "deleted",
}
# The conditions of an active trial by the state of its allocation.
_ALLOCATION_WORDS: Mapping[str, str] = {
    "PENDING": "queued",
    "RUNNING": "running",
    "TERMINATING": "preempted",
}


def condition_text(item: Item) -> str:
    """Return the condition of an experiment or trial, for example `queued`.

    Without the field `condition`, the stored state is translated: an active trial counts as
    `queued` without an allocation, `starting` until the allocation runs, and then `running`. An
    unknown state is returned unchanged.

    Args:
        item: the fields in the API. Without `condition` and `state`, KeyError is raised.
    """
    condition = item.get("condition")
    if condition:
        return str(condition)
    if item["state"] == "ACTIVE" and "allocation" in item:
        allocation = item["allocation"]
        return _ALLOCATION_WORDS.get(allocation["state"], "starting") if allocation else "queued"
    return _WORDS.get(item["state"], str(item["state"]))


CONDITION = Column("State", condition_text, exact=lambda item: item.get("state"))
"""The condition in tables, and the stored state in CSV, because scripts read CSV."""
