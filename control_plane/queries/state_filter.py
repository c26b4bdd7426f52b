"""Filters of experiments and trials by state: by condition, the word for users, or by status."""

from collections.abc import Sequence
from dataclasses import dataclass

from control_plane.actors.records import Status
from control_plane.errors import invalid
from control_plane.queries.conditions import (
    END_CONDITIONS,
    EXPERIMENT_CONDITIONS,
    TRIAL_CONDITIONS,
    statuses_of,
)


@dataclass(frozen=True, slots=True)
class StateFilter:
    """A filter by condition and stored status. Whatever matches either is listed."""

    statuses: frozenset[str] = frozenset()
    """The allowed statuses."""
    conditions: frozenset[str] = frozenset()
    """The allowed conditions."""

    @property
    def is_empty(self) -> bool:
        """Return whether everything matches the filter."""
        return not (self.statuses or self.conditions)

    def matches(self, status: str, condition: str) -> bool:
        """Return whether an experiment or trial with this status and condition matches."""
        return self.is_empty or status in self.statuses or condition in self.conditions

    def may_match_experiment(self, status: str) -> bool:
        """Return whether an experiment with this stored status may match the filter.

        The condition of an active experiment also depends on its pool, so that the result may be
        True for an experiment that does not match.
        """
        if self.is_empty or status in self.statuses:
            return True
        return any(status in statuses_of(condition) for condition in self.conditions)

    def may_match_trial(self, end_status: str) -> bool:
        """Return whether a trial with this final status may match the filter.

        The condition of a completed trial and of an open trial also depends on the trial's state,
        so that the result may be True for a trial that does not match.

        Args:
            end_status: the final status of the trial. "": the trial is open.
        """
        if self.is_empty or end_status in self.statuses:
            return True
        if end_status:
            return not self.conditions.isdisjoint(END_CONDITIONS[Status(end_status)])
        ended = {word for words in END_CONDITIONS.values() for word in words}
        return bool(self.conditions - ended) or any(
            not Status(status).is_final for status in self.statuses
        )


def parse_experiment_states(text: str | None) -> StateFilter:
    """Parse a comma list of conditions and statuses of experiments, as `_parse_states` does."""
    return _parse_states(text, EXPERIMENT_CONDITIONS)


def parse_trial_states(text: str | None) -> StateFilter:
    """Parse a comma list of conditions and statuses of trials, as `_parse_states` does."""
    return _parse_states(text, TRIAL_CONDITIONS)


def _parse_states(text: str | None, known: Sequence[str]) -> StateFilter:
    """Parse a comma list of conditions and statuses, in any case. No text is the empty filter.

    A hyphen or underline in a condition counts as a blank: `waiting-at-a-rung`. A word that is both
    a condition and a status, such as `paused`, is the status.

    Args:
        text: the list.
        known: the conditions.

    Raises:
        RequestError: invalid, for an unknown word.
    """
    statuses: set[str] = set()
    conditions: set[str] = set()
    for name in text.split(",") if text else ():
        status = name.strip().upper()
        condition = " ".join(name.lower().replace("_", " ").replace("-", " ").split())
        if status in Status.__members__:
            statuses.add(status)
        elif condition in known:
            conditions.add(condition)
        else:
            expected = ", ".join((*known, *Status))
            raise invalid("state", f"{name!r:.40} is not a state; expected one of {expected}")
    return StateFilter(frozenset(statuses), frozenset(conditions))
