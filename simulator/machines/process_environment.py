"""The parts of the simulation that all processes of trials share, and the phases of a process."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from control_plane.simulation.virtual_clock import VirtualClock
from simulator.machines.checkpoints import CheckpointStore
from simulator.machines.gang import Gang, gang_registry


class ProcessPhase(Enum):
    """The phase of a process."""

    STARTING = "starting"
    WAITING_FOR_NODES = "waiting for nodes"
    CHECKING = "checking"
    HANGING = "hanging"
    TRAINING = "training"
    CHECKPOINTING = "checkpointing"
    WAITING_FOR_WORK = "waiting for work"
    ENDED = "ended"


@dataclass
class ProcessEnvironment:
    """The parts of the simulation that all processes share."""

    clock: VirtualClock
    checkpoints: CheckpointStore
    gang: Callable[[str, int], Gang] = field(default_factory=gang_registry)
    """Returns the gang of an allocation, given the name and the node count."""
    due_checkpoints: dict[str, str] = field(default_factory=dict)
    """The allocations that got a notice early enough to write a checkpoint.

    The value is the UUID of this checkpoint, or "" until the checkpoint is written.
    """
    draw_damage: Callable[[], bool] = lambda: False
    """Returns whether a process finds its checkpoint damaged."""
    draw_match: Callable[[Mapping[str, Any]], str] = lambda spec: ""
    """Returns the action of a log policy that a line of a run matches, or "". The argument is the
    specification of the run.
    """
    draw_low_use: Callable[[], bool] = lambda: False
    """Returns whether a node of a run uses little of its slots, or a low use ends."""
    draw_hang: Callable[[Mapping[str, Any]], int | None] = lambda spec: None
    """Returns the time in ms after which a hanging run works again. None: the run does not hang.
    The argument is the specification of the run.
    """
    bad_networks: dict[str, int] = field(default_factory=dict)
    """The number of present faults of the network of each agent. A number above 0 is bad."""
    on_damage: Callable[[int, str], None] = lambda trial_id, uuid: None
    """Called with the trial's id and the UUID of a checkpoint that was found damaged."""

    def excuse_checkpoint(self, allocation: str) -> None:
        """Delete an allocation from `due_checkpoints`, unless its checkpoint is written."""
        if self.due_checkpoints.get(allocation) == "":
            del self.due_checkpoints[allocation]


@dataclass(frozen=True)
class EndNotice:
    """A notice that the machine ends at the virtual time `deadline_ms`."""

    deadline_ms: int
