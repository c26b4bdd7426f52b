"""Jobs by what people call them: a UUID, any unique beginning of it, or the experiment's id."""

import re

from control_plane.actors.experiment_job import JOB_IDS
from control_plane.api.errors import ApiError, Code, invalid
from control_plane.api.services import Services

# What lists show of a UUID: digits of that length are meant as one.
SHOWN_CHARACTERS = 8

_PREFIX = re.compile(r"[0-9a-f-]{1,36}")
_NUMBER = re.compile(r"[1-9][0-9]{0,11}")


def job_of(services: Services, text: str) -> int:
    """The experiment whose job is called so.

    Raises:
        ApiError: not_found; invalid, for a beginning that several jobs have.
    """
    by_number = len(text) < SHOWN_CHARACTERS
    looks = (_by_number, _by_uuid) if by_number else (_by_uuid, _by_number)
    for look in looks:
        found = look(services, text)
        if found is not None:
            return found
    raise ApiError(Code.NOT_FOUND, f"job {text:.40} not found")


def _by_number(services: Services, text: str) -> int | None:
    number = int(text) if _NUMBER.fullmatch(text) else 0
    return number if number and services.agents.experiment(number) is not None else None


def _by_uuid(services: Services, text: str) -> int | None:
    prefix = text.lower()
    if not _PREFIX.fullmatch(prefix):
        return None
    rows = services.table.query(JOB_IDS, prefix, f"{prefix}~", limit=2).rows
    if len(rows) > 1:
        raise invalid("job_id", f"several jobs begin with {prefix}", "give more digits")
    return int(rows[0].body) if rows else None
