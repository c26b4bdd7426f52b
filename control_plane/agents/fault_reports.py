"""Reports of agents about faults of machines."""

from typing import NamedTuple

from control_plane.actors import addresses
from control_plane.actors.agent.actor import AgentState
from control_plane.actors.messages.agent import FaultsReported
from control_plane.engine.engine import Engine


class FaultReport(NamedTuple):
    """The present state of an agent's machine."""

    faults: tuple[tuple[int | None, str], ...] = ()
    """The slot and the reason of each fault. None in place of a slot: the whole machine."""
    occupancy: tuple[str, bool] | None = None
    """The reason why people use the machine, and whether running trials leave. None: nobody does.
    """


def report_faults(engine: Engine, agent: str, epoch: int, report: FaultReport) -> None:
    """Store the present state of an agent's machine, and close or open the machine's slots.

    The pool is notified in the same commit. A report without a change, of another session, or of an
    unknown agent writes nothing.

    Args:
        engine: the engine of the cluster.
        agent: the agent's id.
        epoch: the number of the agent's session.
        report: all present faults, and the use by people.

    Raises:
        TableError: the state table failed.
    """
    address = addresses.agent(agent)
    state = engine.read_state(address)
    if not isinstance(state, AgentState) or state.epoch != epoch:
        return
    known = state.occupancy
    stored = FaultReport(
        tuple((fault.slot, fault.reason) for fault in state.faults),
        None if known is None else (known.reason, known.checkpoints),
    )
    if stored != report:
        engine.execute_command(address, FaultsReported(epoch, *report), by=agent)
