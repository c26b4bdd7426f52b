"""Stored names of messages with renamed classes.

Mailboxes, timers and journals store a message under the name that its class had in release 0.1.0. A
renamed class keeps its stored name here, so that stored messages stay readable and unchanged.
"""

from collections.abc import Mapping
from dataclasses import dataclass

# The keys are names rather than classes, so that a process does not import all message modules.
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
    """A stored message that cannot be decoded into any message class.

    Only the stored name is known.
    """

    name: str
    """The stored name of the message."""


def message_name(message: object) -> str:
    """Return the stored name of a message, for texts to users, also of an undecodable message."""
    return message.name if isinstance(message, UndecodableMessage) else stored_name(type(message))


def stored_name(message_type: type) -> str:
    """Return the name that STORED_NAMES lists for the class, or else the class's own name."""
    name = message_type.__name__
    return STORED_NAMES.get(name, name)
