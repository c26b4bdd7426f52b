"""Names under which messages are stored, where a class has another name by now.

Mailboxes, timers and journals hold a message under the name its class had in release 0.1.0. A
class that is renamed keeps that name here, so that what is stored stays readable and unchanged.
"""

from collections.abc import Mapping
from dataclasses import dataclass

# By the name of the class: a process imports the messages of the actors that it meets.
STORED_NAMES: Mapping[str, str] = {
    "StaleAllocationsFound": "AuditFound",
    "CheckpointDeletionRequested": "CheckpointsUnwanted",
    "CheckpointRequested": "CheckpointWanted",
    "CostCheckDue": "CostLookDue",
    "LengthReached": "LengthReported",
    "SuggestedPoints": "Suggested",
    "TrialValidationReported": "TrialValidated",
}


@dataclass(frozen=True, slots=True)
class UndecodableMessage:
    """A message whose stored fields are not those of any message: all that is known is its name."""

    name: str


def message_name(message: object) -> str:
    """The stored name of a message, for users."""
    return message.name if isinstance(message, UndecodableMessage) else stored_name(type(message))


def stored_name(message_type: type) -> str:
    """The name under which messages of a class are stored."""
    name = message_type.__name__
    return STORED_NAMES.get(name, name)
