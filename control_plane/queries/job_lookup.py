"""Lookup of a job by the UUID, a unique prefix of the UUID, or the experiment's id."""

import re
from collections.abc import Iterable, Iterator

from control_plane.access.ownership import OwnedObject
from control_plane.actors.experiment.job import JOB_IDS
from control_plane.errors import Code, RequestError, invalid
from control_plane.queries.experiment_owners import find_owned_experiment
from control_plane.services import Services

# The characters of a job's UUID that lists show. A number with at least as many digits is looked up
# as a UUID first.
SHOWN_CHARACTERS = 8

_PREFIX = re.compile(r"[0-9a-f-]{1,36}")
_NUMBER = re.compile(r"[1-9][0-9]{0,11}")


def find_job(services: Services, text: str) -> int:
    """Return the experiment id of a job.

    Args:
        services: the services that read the state.
        text: the job's UUID, a prefix of the UUID, or the experiment's id. Text shorter than
            SHOWN_CHARACTERS is looked up as an id first, longer text as a UUID first. The id also
            matches an experiment that has ended, but not a deleted one; the UUID matches neither.

    Raises:
        RequestError: not_found, if no job matches; invalid, if several UUIDs have the prefix.
    """
    is_number_likelier = len(text) < SHOWN_CHARACTERS
    lookups = (_find_by_number, _find_by_uuid)
    for find in lookups if is_number_likelier else reversed(lookups):
        experiment_id = find(services, text)
        if experiment_id is not None:
            return experiment_id
    raise RequestError(Code.NOT_FOUND, f"job {text:.40} not found")


def find_owned_jobs(services: Services, jobs: Iterable[str]) -> Iterator[OwnedObject]:
    """Yield the ownership of each job's experiment once.

    `jobs` has texts as for `find_job`. Skip texts for which `find_job` raises a RequestError: texts
    that match no job or several jobs.

    Raises:
        RequestError: not_found, if an experiment no longer has a state.
    """
    experiment_ids = dict.fromkeys(_find_job_or_none(services, job) for job in jobs)
    for experiment_id in experiment_ids:
        if experiment_id is not None:
            name = f"the job of experiment {experiment_id}"
            yield from find_owned_experiment(services, experiment_id, name)


def _find_job_or_none(services: Services, text: str) -> int | None:
    """Return the experiment id of a job. None if no job or several jobs match."""
    try:
        return find_job(services, text)
    except RequestError:
        return None


def _find_by_number(services: Services, text: str) -> int | None:
    """Return the experiment id that the text is. Return None for other texts and unknown
    experiments.

    A deleted experiment is unknown.
    """
    number = int(text) if _NUMBER.fullmatch(text) else 0
    return number if number and services.experiments.read_experiment(number) is not None else None


def _find_by_uuid(services: Services, text: str) -> int | None:
    """Return the experiment id of the job with a UUID that starts with the text.

    Return None without a match. UUIDs of experiments that have ended do not match.

    Raises:
        RequestError: invalid, if several UUIDs match.
    """
    prefix = text.lower()
    if not _PREFIX.fullmatch(prefix):
        return None
    rows = services.table.query(JOB_IDS, prefix, f"{prefix}~", limit=2).rows
    if len(rows) > 1:
        raise invalid("job_id", f"several jobs begin with {prefix}", "give more digits")
    return int(rows[0].body) if rows else None
