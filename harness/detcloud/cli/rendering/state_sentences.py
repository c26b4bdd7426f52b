"""Sentences about the state of an experiment, trial, command, notebook, shell or checkpoint."""

from __future__ import annotations

_PREDICATES = {
    "ACTIVE": "is active",
    "PAUSED": "is paused",
    "STOPPING_COMPLETED": "is stopping: its last trials end",
    "STOPPING_CANCELED": "is being canceled: its trials save a checkpoint first",
    "STOPPING_KILLED": "is being killed",
    "STOPPING_ERROR": "is failing: its last trials end",
    "COMPLETED": "finished",
    "CANCELED": "is canceled",
    "ERROR": "failed",
    "DELETING": "is being deleted",
    "DELETE_FAILED": "could not be deleted",
    "DELETED": "is deleted",
    "PARTIALLY_DELETED": "is partly deleted",
}


def state_sentence(subject: str, state: str) -> str:
    """Return for example `experiment 3 is being killed` for ('experiment 3', 'STOPPING_KILLED').

    An unknown state, for example of a newer cluster, is shown unchanged: `experiment 3 is NEW`.
    """
    return f"{subject} {_PREDICATES.get(state, f'is {state}')}"
