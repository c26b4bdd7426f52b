"""The result of a search for new output of an allocation."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The kinds of new output that a scan of an allocation found."""

    has_urgent: bool = False
    """Whether some output must be sent at once."""
    has_deferrable: bool = False
    """Whether some output was found that may wait for a short time."""
