"""Every message to an agent's record, in the past tense."""

from dataclasses import dataclass

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class AgentEnrolled:
    """Constructor and re-enrolment: a new session of the agent. `slots`: (id, type, uuid, name)
    of each. Only jobs of its `label` run on it. `address`: where other agents' trials reach those
    on this one.
    """

    agent: str
    pool: str
    slots: tuple[tuple[int, str, str, str], ...]
    version: str = ""
    label: str = ""
    address: str = LOOPBACK


@dataclass(frozen=True, slots=True)
class AllocationPlaced:
    """The pool wants this allocation on the agent, as its node of that rank among `nodes`."""

    trial_id: int
    epoch: int
    slots: tuple[int, ...]
    node_rank: int = 0
    nodes: int = 1


@dataclass(frozen=True, slots=True)
class AllocationRemoved:
    """The allocation has ended and may be forgotten."""

    trial_id: int
    epoch: int


@dataclass(frozen=True, slots=True)
class AgentDeclaredLost:
    """The pool gave the agent of this epoch up."""

    epoch: int


@dataclass(frozen=True, slots=True)
class AgentForgotten:
    """Command: the session of this epoch was given up long ago, and nobody looks after it any more.
    The reply is whether that session is over.
    """

    epoch: int


@dataclass(frozen=True, slots=True)
class AgentEnableRequested:
    """Command: the agent, or its slot `slot`, takes work again."""

    slot: int | None = None


@dataclass(frozen=True, slots=True)
class AgentDisableRequested:
    """Command: the agent, or its slot `slot`, takes no work. What runs on the agent leaves now, or
    with `drain` when it is done; a slot is left now.
    """

    slot: int | None = None
    drain: bool = False


AgentMessage = (
    AgentEnrolled
    | AllocationPlaced
    | AllocationRemoved
    | AgentDeclaredLost
    | AgentForgotten
    | AgentEnableRequested
    | AgentDisableRequested
)
