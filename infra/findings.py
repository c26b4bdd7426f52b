"""Findings of a check before a deployment, each with a remedy."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TypeVar

T = TypeVar("T")


class Level(StrEnum):
    """The severity of a finding. With an `error`, the deployment cannot work."""

    FINE = "fine"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    """A result of a check."""

    level: Level
    subject: str
    """The checked resource or setting, like `quota L-1216C47A`."""
    text: str
    """The result in words."""
    remedy: str = ""
    """The user's next step; empty if nothing is wrong."""

    def to_json(self) -> dict[str, str]:
        """Return the fields by name, ready for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Unknown:
    """A fact that could not be read."""

    needs: str
    """The permissions that the read requires."""
    why: str
    """The cloud's answer, or why no answer arrived."""
    is_login: bool = False
    """Whether the cloud did not recognize the caller."""


def fine_finding(subject: str, text: str) -> Finding:
    """Return a finding of level FINE without a remedy."""
    return Finding(Level.FINE, subject, text)


def read_fact(
    fact: T | Unknown, subject: str, look: Callable[[T], Iterator[Finding]]
) -> Iterator[Finding]:
    """Yield the findings that `look` makes from a fact, or a single warning for an Unknown fact.

    The warning has the subject `subject`, the reason, and the permissions that the read requires.
    """
    if isinstance(fact, Unknown):
        text = f"could not be checked: {fact.why}"
        yield Finding(Level.WARNING, subject, text, f"the check needs {fact.needs}")
    else:
        yield from look(fact)


def error_lines(findings: Iterable[Finding]) -> list[str]:
    """Return a line for each finding of level ERROR: subject, text and remedy."""
    return [_line(finding) for finding in findings if finding.level is Level.ERROR]


def warning_lines(findings: Iterable[Finding]) -> list[str]:
    """Return a line for each finding of level WARNING: subject, text and remedy."""
    return [_line(finding) for finding in findings if finding.level is Level.WARNING]


def _line(finding: Finding) -> str:
    """Return `SUBJECT: TEXT`, followed by `; REMEDY` if the finding has a remedy."""
    remedy = f"; {finding.remedy}" if finding.remedy else ""
    return f"{finding.subject}: {finding.text}{remedy}"
