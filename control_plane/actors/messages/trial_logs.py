"""The message to a trial about a line of a log, and the actions of log policies."""

from dataclasses import dataclass
from typing import Final

CANCEL_RETRIES: Final = "cancel_retries"
"""The action after which a failure of the trial is not followed by another run."""
EXCLUDE_NODE: Final = "exclude_node"
"""The action after which no later run of the trial starts on the node."""
LOG_ACTIONS: Final = (CANCEL_RETRIES, EXCLUDE_NODE)
"""The actions of log policies, besides signals."""


@dataclass(frozen=True, slots=True)
class LogPolicyMatched:
    """A line of the allocation's log matched a log policy of the experiment.

    An agent reports the first matching line of each policy and run, before the exit of the node.
    """

    epoch: int
    """The epoch of the allocation."""
    pattern: str
    """The pattern of the policy."""
    line: str
    """The beginning of the line, for users."""
    name: str = ""
    """The name of the policy. "": the policy has no name."""
    actions: tuple[str, ...] = ()
    """The actions of the policy, each of LOG_ACTIONS."""
    signal: str = ""
    """The text that the trial shows. "": no text."""
    webhook: str = ""
    """The name of the webhook that the policy calls. "": no webhook."""
    rank: int = 0
    """The rank of the process that wrote the line. 0 if unknown."""
    node_rank: int = 0
    """The rank of the node."""
