"""Finding a job by its UUID, any unique prefix of that, or its experiment's id."""

import re

from control_plane.actors.experiment.job import JOB_IDS
from control_plane.errors import Code, RequestError, invalid
from control_plane.services import Services

# The characters of a UUID that lists show: digits of that length are taken for a UUID.
SHOWN_CHARACTERS = 8

_PREFIX = re.compile(r"[0-9a-f-]{1,36}")
_NUMBER = re.compile(r"[1-9][0-9]{0,11}")


def find_job(services: Services, text: str) -> int:
    """Return the id of the experiment whose job the text names.

    Raises:
        RequestError: not_found; invalid, for a prefix that several jobs have.
    """
    is_number_likelier = len(text) < SHOWN_CHARACTERS
    lookups = (_find_by_number, _find_by_uuid)
    for find in lookups if is_number_likelier else reversed(lookups):
        experiment_id = find(services, text)
        if experiment_id is not None:
            return experiment_id
    raise RequestError(Code.NOT_FOUND, f"job {text:.40} not found")


def _find_by_number(services: Services, text: str) -> int | None:
    number = int(text) if _NUMBER.fullmatch(text) else 0
    return number if number and services.agents.read_experiment(number) is not None else None


def _find_by_uuid(services: Services, text: str) -> int | None:
    prefix = text.lower()
    if not _PREFIX.fullmatch(prefix):
        return None
    rows = services.table.query(JOB_IDS, prefix, f"{prefix}~", limit=2).rows
    if len(rows) > 1:
        raise invalid("job_id", f"several jobs begin with {prefix}", "give more digits")
    return int(rows[0].body) if rows else None
