"""A preview of the collection of an experiment's checkpoints: which it would delete."""

from collections.abc import Generator, Sequence
from typing import TypeVar

from control_plane.actors import addresses
from control_plane.actors.records import Retention
from control_plane.actors.trial.checkpoints import CHECKPOINT_PARTS, CheckpointRecord
from control_plane.collection.collection_request import survey_unwanted
from control_plane.collection.ranking import CheckpointCandidate
from control_plane.queries import checkpoint as checkpoints
from control_plane.queries import experiment as experiments
from control_plane.queries.answer import Answer
from control_plane.services import Services

SHOWN_MAX = 500

T = TypeVar("T")


class CollectionPreview(Answer):
    """The effect that a collection would have now; `delete` holds the first of `delete_count`."""

    delete: list[checkpoints.Checkpoint]
    delete_count: int
    delete_bytes: int
    keep_count: int
    keep_bytes: int


def preview_collection(
    services: Services,
    experiment_id: int,
    save_experiment_best: int | None,
    save_trial_best: int | None,
    save_trial_latest: int | None,
) -> CollectionPreview:
    """Preview a collection with these numbers; None: as configured. RequestError not_found."""
    state, definition = experiments.get_experiment(services, experiment_id)
    now = experiments.current_settings(services, state, definition).retention
    retention = Retention(
        now.save_experiment_best if save_experiment_best is None else save_experiment_best,
        now.save_trial_best if save_trial_best is None else save_trial_best,
        now.save_trial_latest if save_trial_latest is None else save_trial_latest,
    )
    survey, doomed = _finish(survey_unwanted(services.engine, state, retention))
    candidates = list(survey.candidates())
    delete_bytes = sum(one.size_bytes for one in doomed)
    return CollectionPreview(
        delete=_describe_candidates(services, experiment_id, doomed[:SHOWN_MAX]),
        delete_count=len(doomed),
        delete_bytes=delete_bytes,
        keep_count=len(candidates) - len(doomed),
        keep_bytes=sum(one.size_bytes for one in candidates) - delete_bytes,
    )


def _describe_candidates(
    services: Services, experiment_id: int, candidates: Sequence[CheckpointCandidate]
) -> list[checkpoints.Checkpoint]:
    """Describe those of an experiment's checkpoints that have not gone since the survey."""
    read = services.engine.read_part
    parts = (read(addresses.trial(one.trial_id), CHECKPOINT_PARTS + one.uuid) for one in candidates)
    records = [part for part in parts if isinstance(part, CheckpointRecord)]
    return checkpoints.checkpoint_answers(services, records, experiment_id)


def _finish(work: Generator[None, None, T]) -> T:
    """Run work that pauses to its end, and return its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
