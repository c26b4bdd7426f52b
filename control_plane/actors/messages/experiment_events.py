"""The messages to an experiment about events that webhooks may announce."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DeadlineNear:
    """Timer: nine tenths of the time until the experiment's deadline are over."""

    run_generation: int


@dataclass(frozen=True, slots=True)
class BestValidationDue:
    """Timer: webhooks may announce the waiting best validation."""


@dataclass(frozen=True, slots=True)
class TrialAlerted:
    """The training code of the trial raised an alert for users and webhooks."""

    number: int
    title: str
    text: str
    """More about the alert, or ""."""
    level: str
    """`debug`, `info`, `warn` or `error`."""


@dataclass(frozen=True, slots=True)
class TrialLogMatched:
    """A line of a trial's log matched a log policy, which webhooks may announce."""

    trial_id: int
    pattern: str
    """The pattern of the policy."""
    line: str
    webhook: str = ""
    """The name of the webhook that the policy calls. "": the webhooks with the pattern."""
    run_generation: int = 0


@dataclass(frozen=True, slots=True)
class WebhooksChanged:
    """A webhook for metrics was created or changed, and may announce the experiment."""
