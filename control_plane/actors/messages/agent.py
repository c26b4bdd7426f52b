"""The messages to an agent actor."""

from dataclasses import dataclass

LOOPBACK = "127.0.0.1"
"""The address of agents that report none."""


@dataclass(frozen=True, slots=True)
class AgentEnrolled:
    """An agent began a new session. The first session creates the actor."""

    agent: str
    """The id of the agent."""
    pool: str
    slots: tuple[tuple[int, str, str, str], ...]
    """The id, type, UUID and name of each slot."""
    version: str = ""
    """The version of the agent's software."""
    label: str = ""
    """The agent's label. Only jobs with this label run on the agent."""
    address: str = LOOPBACK
    """The address at which trials on other agents reach trials on this agent."""
    runtime: str = ""
    """The way in which the agent runs trials: `process` or `docker`. "": an older agent that does
    not report it.
    """
    installation: str = ""
    """The incarnation of the cluster's state and the id of the agent's work directory, as
    `INCARNATION/ID`. "": an older agent, or the agent of an instance.
    """
    memory_mib: tuple[int, ...] = ()
    """The memory of each slot, in the order of `slots`. 0: unknown. Empty: all unknown."""
    occupancy: tuple[str, bool] | None = None
    """As in FaultsReported."""
    code: str = ""
    """The digest of the agent's code. "": an agent that does not update itself."""
    only_user: str = ""
    """The only user of the machine that the agent can run trials as, as `UID:GID`. "": any user."""


@dataclass(frozen=True, slots=True)
class AgentUpgradeRequested:
    """An admin requested other code for the agent at once, without a stop of trials."""

    code: str
    """The digest of the archive of the code."""


@dataclass(frozen=True, slots=True)
class AllocationPlaced:
    """The pool placed an allocation on the agent."""

    trial_id: int
    epoch: int
    """The epoch of the allocation."""
    slots: tuple[int, ...]
    """The ids of the agent's slots that the allocation holds."""
    node_rank: int = 0
    """The number of this agent among the allocation's nodes."""
    nodes: int = 1
    """The number of the allocation's nodes."""


@dataclass(frozen=True, slots=True)
class AllocationRemoved:
    """The allocation has ended on this agent and should no longer run here."""

    trial_id: int
    epoch: int
    """The epoch of the allocation."""


@dataclass(frozen=True, slots=True)
class AgentDeclaredLost:
    """The pool declared the agent's session lost."""

    epoch: int
    """The number of the session."""


@dataclass(frozen=True, slots=True)
class AgentForgotten:
    """Command: remove the rows of a session that was declared lost long ago.

    The reply is whether the session is over.
    """

    epoch: int
    """The number of the session."""


@dataclass(frozen=True, slots=True)
class AgentEnableRequested:
    """Command: accept work again on the agent, or on a single slot."""

    slot: int | None = None
    """The id of the slot. None: the whole agent."""


@dataclass(frozen=True, slots=True)
class AgentDisableRequested:
    """Command: accept no work on the agent, or on a single slot.

    The allocations there are stopped immediately, unless `drain`.
    """

    slot: int | None = None
    """The id of the slot. None: the whole agent."""
    drain: bool = False
    """Whether the allocations on the agent may finish. It has no effect on the command for one
    slot.
    """
    ends_ms: int | None = None
    """The time at which the cloud takes the machine away, in epoch ms, if the cluster received that
    notice. None: no notice.
    """


@dataclass(frozen=True, slots=True)
class FaultsReported:
    """Command: the agent reported all present faults and the use by people of the machine.

    The reply is the agent's id.
    """

    epoch: int
    """The number of the session."""
    faults: tuple[tuple[int | None, str], ...] = ()
    """The slot and the reason of each fault. None in place of a slot: the whole machine."""
    occupancy: tuple[str, bool] | None = None
    """The reason why people use the machine, and whether running trials leave. None: nobody uses
    the machine, or an older agent.
    """


@dataclass(frozen=True, slots=True)
class AgentExcluded:
    """The pool excluded the agent's machine from new work for a while."""

    reason: str
    """The reason, for users."""
    until_ms: int
    """The end of the exclusion, in epoch ms."""


@dataclass(frozen=True, slots=True)
class ExclusionEnded:
    """Timer: an exclusion of the agent's machine is over."""


@dataclass(frozen=True, slots=True)
class TunnelOpened:
    """Command: a user opened a tunnel to an allocation of the agent.

    The reply is the id of the tunnel.
    """

    tunnel: str
    """The id of the tunnel."""
    trial_id: int
    epoch: int
    """The epoch of the allocation."""


@dataclass(frozen=True, slots=True)
class TunnelClosed:
    """Command: a tunnel was closed, or can no longer be used.

    The reply is the id of the tunnel.
    """

    tunnel: str
    """The id of the tunnel."""


AgentMessage = (
    AgentEnrolled
    | AllocationPlaced
    | AllocationRemoved
    | AgentDeclaredLost
    | AgentForgotten
    | AgentUpgradeRequested
    | AgentEnableRequested
    | AgentDisableRequested
    | FaultsReported
    | AgentExcluded
    | ExclusionEnded
    | TunnelOpened
    | TunnelClosed
)
