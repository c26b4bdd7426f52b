"""Requests to the checkpoint collector.

A row in `collections` requests a collection. The row is written in the commit that makes the
collection necessary. The requests of an experiment are numbered, so that a late answer to an
earlier request changes nothing.
"""

import json
from dataclasses import astuple

from control_plane.actors.collection_rows import COLLECTIONS
from control_plane.actors.experiment.state import ExperimentState, listing_sort_key, settings_of
from control_plane.actors.step import StepContext
from control_plane.evolve import evolve


def request_collection(
    state: ExperimentState, context: StepContext, *, delete: bool = False
) -> ExperimentState:
    """Write the row that requests a collection of the experiment's checkpoints by the retention
    settings.

    With `delete`, the row requests the deletion of everything that the experiment made. Otherwise
    the row contains the pending deletion of expired data, if any. Return the state with the next
    `collection_number`.
    """
    retention = settings_of(context).retention
    limits = [
        retention.save_experiment_best,
        retention.save_trial_best,
        retention.save_trial_latest,
    ]
    number = state.collection_number + 1
    request: dict[str, object] = {"generation": number, "retention": limits, "delete": delete}
    if state.expiry.pending is not None and not delete:
        request["expiry"] = list(astuple(state.expiry.pending))
    body = json.dumps(request).encode()
    context.write_row(COLLECTIONS, listing_sort_key(state.experiment_id), body)
    return evolve(state, collection_number=number)
