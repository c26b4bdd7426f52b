"""The messages to an agent actor."""

from dataclasses import dataclass

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class AgentEnrolled:
    """A new session of the agent; the first one creates the actor. `slots`: (id, type, uuid, name)
    of each. Only jobs of its `label` run on it. `address`: where trials on other agents reach those
    on this one. `runtime`: `process` or `docker`, "" from an agent that does not say.
    """

    agent: str
    pool: str
    slots: tuple[tuple[int, str, str, str], ...]
    version: str = ""
    label: str = ""
    address: str = LOOPBACK
    runtime: str = ""


@dataclass(frozen=True, slots=True)
class AllocationPlaced:
    """The pool placed an allocation on the agent, as node `node_rank` of `nodes`."""

    trial_id: int
    epoch: int
    slots: tuple[int, ...]
    node_rank: int = 0
    nodes: int = 1


@dataclass(frozen=True, slots=True)
class AllocationRemoved:
    """The allocation has ended on this agent, and does not belong there any more."""

    trial_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class AgentDeclaredLost:
    """The pool has given up the agent's session of this epoch."""

    epoch: int


@dataclass(frozen=True, slots=True)
class AgentForgotten:
    """Command: the session of this epoch was given up long ago, and its rows are to be removed. The
    reply is whether that session is over.
    """

    epoch: int


@dataclass(frozen=True, slots=True)
class AgentEnableRequested:
    """Command: the agent, or its slot `slot`, takes work again."""

    slot: int | None = None


@dataclass(frozen=True, slots=True)
class AgentDisableRequested:
    """Command: the agent, or its slot `slot`, takes no work. What runs on the agent is stopped now,
    or with `drain` may finish; what runs on a slot is stopped now. `ends_ms`: its machine is taken
    away then (epoch ms), as only the cluster may have been told.
    """

    slot: int | None = None
    drain: bool = False
    ends_ms: int | None = None


AgentMessage = (
    AgentEnrolled
    | AllocationPlaced
    | AllocationRemoved
    | AgentDeclaredLost
    | AgentForgotten
    | AgentEnableRequested
    | AgentDisableRequested
)
