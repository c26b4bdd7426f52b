"""Reports of agents about faults of machines."""

from collections.abc import Sequence

from control_plane.actors import addresses
from control_plane.actors.agent.actor import AgentState
from control_plane.actors.messages.agent import FaultsReported
from control_plane.engine.engine import Engine


def report_faults(
    engine: Engine, agent: str, epoch: int, faults: Sequence[tuple[int | None, str]]
) -> None:
    """Store the present faults of an agent's machine, and close or open the machine's slots.

    The pool is notified in the same commit. A report without a change, of another session, or of an
    unknown agent writes nothing.

    Args:
        engine: the engine of the cluster.
        agent: the agent's id.
        epoch: the number of the agent's session.
        faults: the slot and the reason of each fault. None in place of a slot: the whole machine.

    Raises:
        TableError: the state table failed.
    """
    address = addresses.agent(agent)
    state = engine.read_state(address)
    if not isinstance(state, AgentState) or state.epoch != epoch:
        return
    if [(fault.slot, fault.reason) for fault in state.faults] == list(faults):
        return
    engine.execute_command(address, FaultsReported(epoch, tuple(faults)), by=agent)
