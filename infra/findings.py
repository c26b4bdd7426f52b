"""The findings of a check before a deployment: a line each, with what to do."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TypeVar

T = TypeVar("T")


class Level(StrEnum):
    """The severity of a finding: with an `error`, the deployment cannot work."""

    FINE = "fine"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    """A finding about a `subject`: `text` states it, `remedy` says what to do about it."""

    level: Level
    subject: str
    text: str
    remedy: str = ""

    def to_json(self) -> dict[str, str]:
        """Return the finding as JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Unknown:
    """A fact that could not be read: `needs` is the permission for it, `why` what the cloud
    answered; `is_login`: the cloud does not know who asks.
    """

    needs: str
    why: str
    is_login: bool = False


def fine_finding(subject: str, text: str) -> Finding:
    """Return the finding that nothing is wrong with a subject."""
    return Finding(Level.FINE, subject, text)


def read_fact(
    fact: T | Unknown, subject: str, look: Callable[[T], Iterator[Finding]]
) -> Iterator[Finding]:
    """Yield the findings of `look` about a fact, or that it could not be read."""
    if isinstance(fact, Unknown):
        text = f"could not be checked: {fact.why}"
        yield Finding(Level.WARNING, subject, text, f"the check needs {fact.needs}")
    else:
        yield from look(fact)


def error_lines(findings: Iterable[Finding]) -> list[str]:
    """Return the findings that are errors, a line each."""
    return [_line(finding) for finding in findings if finding.level is Level.ERROR]


def warning_lines(findings: Iterable[Finding]) -> list[str]:
    """Return the findings that are warnings, a line each."""
    return [_line(finding) for finding in findings if finding.level is Level.WARNING]


def _line(finding: Finding) -> str:
    remedy = f"; {finding.remedy}" if finding.remedy else ""
    return f"{finding.subject}: {finding.text}{remedy}"
