"""The findings of a check before a deployment: a line each, with what to do."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum


class Level(StrEnum):
    """Whether a deployment works as far as a finding goes: `error` is something that cannot."""

    FINE = "fine"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class Finding:
    """A finding about a `subject`: `text` is what is so, `remedy` what to do about it."""

    level: Level
    subject: str
    text: str
    remedy: str = ""

    def to_json(self) -> dict[str, str]:
        """Return the finding as JSON."""
        return asdict(self)


def error_lines(findings: Iterable[Finding]) -> list[str]:
    """Return the findings that are errors, a line each."""
    return [_line(it) for it in findings if it.level is Level.ERROR]


def warning_lines(findings: Iterable[Finding]) -> list[str]:
    """Return the findings that are warnings, a line each."""
    return [_line(it) for it in findings if it.level is Level.WARNING]


def _line(finding: Finding) -> str:
    remedy = f"; {finding.remedy}" if finding.remedy else ""
    return f"{finding.subject}: {finding.text}{remedy}"
