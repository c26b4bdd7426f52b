"""The message to a trial about an alert of the training code."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AlertReported:
    """The training code raised an alert for users and webhooks."""

    epoch: int
    """The epoch of the allocation."""
    title: str
    text: str
    """More about the alert, or ""."""
    level: str
    """`debug`, `info`, `warn` or `error`."""
