"""The desired state of an agent, built from the states of the agent, trials and experiments."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from control_plane.actors.agent.actor import AgentState, DesiredAllocation
from control_plane.actors.experiment.state import Definition, ExperimentState
from control_plane.actors.records import Status
from control_plane.actors.trial.gang import is_broken
from control_plane.actors.trial.state import DesiredState, TrialState
from control_plane.agents.sessions import Session

GRACE_MS = 15_000
"""The time that a process gets to end after a stop signal, before it is killed."""
BROKEN_GANG_GRACE_MS = 4_000
"""The same for the processes of a gang of which a node was lost or has failed."""
# Below the ports that systems assign to connections, and above the ports of well-known services.
PORT_FIRST = 20_480
PORT_BLOCKS = 1_024
"""The number of port blocks. Trials with the same remainder of their ids share a block."""
PORTS_PER_BLOCK = 8
"""The ports of a block, which successive allocations of a trial use in turn."""

_STOPPING_FOR_GOOD = (Status.STOPPING_KILLED, Status.STOPPING_ERROR)

SpecBuilder = Callable[[ExperimentState, Definition, TrialState], dict[str, Any]]
"""A function that builds `in/spec.json` without the fields that depend on the agent."""


@dataclass(frozen=True, slots=True)
class TrialSource:
    """The functions that `desired_entries` reads trials, experiments and agents with."""

    read_trial: Callable[[int], TrialState | None]
    """Returns a trial's state by id, None for an unknown trial."""
    read_experiment: Callable[[int], tuple[ExperimentState, Definition] | None]
    """Returns an experiment's state and definition by id, None for an unknown or deleted
    experiment.
    """
    build_spec: SpecBuilder
    """Builds the spec of a trial that is to start."""
    read_address: Callable[[str], str]
    """Returns the network address of an agent by name."""


def desired_entries(
    agent: AgentState, session: Session, known: Iterable[str], trials: TrialSource
) -> list[dict[str, Any]]:
    """Return the entries of an agent's desired state, with an entry per allocation.

    - An allocation that is assigned to the agent is to run, to wait for slots or nodes, or to be
      killed. If the allocation may start and the agent does not have it yet, its entry contains the
      spec with secrets, and the place of the code.
    - An allocation that no longer belongs on the agent is to be killed, or deleted after its exit.

    An assigned allocation that has ended gets no entry if the agent does not have the allocation.
    If the experiment no longer exists, a new allocation's entry lacks spec and code. Errors of the
    functions in `trials` are raised.

    Args:
        agent: the agent's state.
        session: the agent's session.
        known: the names of the allocations that the agent has.
        trials: reads trials, experiments and addresses.
    """
    entries = []
    placed = set[str]()
    present = set(known)
    is_crowded = _is_crowded(agent, session, present)
    for desired in agent.desired:
        allocation = f"{desired.trial_id}.{desired.epoch}"
        placed.add(allocation)
        trial = trials.read_trial(desired.trial_id)
        if trial is None or trial.epoch != desired.epoch or trial.status.is_final:
            if allocation in present:
                entries.append(_removal_entry(allocation, session))
            continue
        entry = _allocation_entry(allocation, trial)
        if allocation not in present and (is_crowded or _is_unplaced(desired, trial)):
            # The slots may still be in use, or other nodes of the gang have no agent yet.
            entries.append({"allocation": allocation, "state": "wait", "directives": None})
            continue
        defined = None if allocation in present else trials.read_experiment(trial.experiment_id)
        if defined is not None:
            experiment, definition = defined
            spec = trials.build_spec(experiment, definition, trial)
            entry["spec"] = {
                **spec,
                "allocation_id": allocation,
                "epoch": desired.epoch,
                "slots": list(desired.slots),
                **_node_fields(desired, trial, agent, trials.read_address),
                "rendezvous_port": rendezvous_port(str(spec.get("cluster_id", "")), allocation),
            }
            entry["code"] = {
                "sha256": definition.code_sha256,
                "path": f"/api/v1/model-code/{definition.code_sha256}",
            }
        entries.append(entry)
    entries += [_removal_entry(name, session) for name in sorted(present - placed)]
    return entries


def trial_directives(trial: TrialState) -> dict[str, Any]:
    """Return the fields of `in/directives.json` for the trial's current allocation.

    - `revision`: the revision of the trial, which grows with every change.
    - `length` in steps, `length_units` in the configured unit, and `closed`: whether no further
      length follows. The lengths are None before the search assigns a length.
    - `length_unit`: "epochs" if `length` and `answered` are in epochs, else absent.
    - `answered`: the last length for which the search decided what follows. 0 if the run must train
      and report the final length again.
    - `preempt`: None, or a dict if the trial must save its work and end: `deadline_ms`, always
      None, and `reason`, a text.
    - `hang`: the number of the allocation's latest hang, for which each node prints the stacks of
      its processes. Absent without a hang.

    The best validation is not among the fields; the caller adds it.
    """
    allocation = trial.allocation
    reason = allocation.desired_state_reason if allocation else ""
    return {
        **({"length_unit": "epochs"} if trial.counts_epochs else {}),
        "revision": trial.revision,
        "length": trial.length,
        "length_units": trial.length_units,
        "closed": trial.closed,
        # If the process failed after the trial's last report, the new run gets the final length
        # again and can repeat lost training.
        "answered": 0 if trial.must_end_again else trial.decided_length,
        "preempt": {"deadline_ms": None, "reason": reason} if _is_preempted(trial) else None,
        **({"hang": allocation.hang.number} if allocation and allocation.hang else {}),
    }


def rendezvous_port(cluster_id: str, allocation: str) -> int:
    """Return the port of the first node at which the nodes of an allocation connect. No port is
    opened.

    Trials with consecutive ids get different ports. So do successive allocations of a trial,
    because a process of the previous allocation may still hold its port. The port depends only on
    the arguments, and is from 20,480 to 28,671. Raises ValueError for another form of name.

    Args:
        cluster_id: the id of the cluster, so that clusters on one machine use different ports.
        allocation: the allocation's name, `TRIAL.EPOCH`: the trial's id, and the number of the
            allocation within the trial.
    """
    trial_id, _, epoch = allocation.partition(".")
    block = (int(trial_id) + crc32(cluster_id.encode())) % PORT_BLOCKS
    return PORT_FIRST + block * PORTS_PER_BLOCK + int(epoch) % PORTS_PER_BLOCK


def _is_crowded(agent: AgentState, session: Session, present: set[str]) -> bool:
    """Return whether the agent has a running allocation outside `agent.desired`.

    Allocations whose exit the session accepted do not count. A lost agent that comes back may run
    such an allocation on slots that are now assigned to others.

    Args:
        present: the names of the allocations that the agent reports, running or exited.
    """
    placed = {f"{desired.trial_id}.{desired.epoch}" for desired in agent.desired}
    return not present.issubset({*placed, *session.exited})


def _is_unplaced(desired: DesiredAllocation, trial: TrialState) -> bool:
    """Return whether some nodes of a gang have no agent yet. False for an allocation of one
    node.
    """
    current = trial.allocation
    return desired.nodes > 1 and (current is None or len(current.places) < desired.nodes)


def _node_fields(
    desired: DesiredAllocation, trial: TrialState, agent: AgentState, address: Callable[[str], str]
) -> dict[str, Any]:
    """Return the fields of a trial's spec about nodes: agent, rank, number of nodes, and addresses.

    The rank comes from `desired`. Each node runs one process, so node ranks and process ranks are
    equal. `hosts` has the addresses of all nodes in the order of ranks. For a single node, or a
    trial without an allocation, `hosts` has only the agent's own address.

    Args:
        desired: the allocation on this agent.
        trial: the trial, whose allocation names the agents.
        agent: this agent.
        address: returns the network address of an agent.
    """
    hosts = [agent.address]
    if desired.nodes > 1 and trial.allocation is not None:
        hosts = [address(name) for name in trial.allocation.agents]
    return {
        "agent_id": agent.agent,
        "rank": desired.node_rank,
        "size": desired.nodes,
        "node_rank": desired.node_rank,
        "nodes": desired.nodes,
        "hosts": hosts,
    }


def _is_preempted(trial: TrialState) -> bool:
    """Return whether the trial must save a checkpoint and end the process, to continue later.

    False without an allocation, and for a trial that is killed or fails for good.
    """
    if trial.allocation is None or trial.allocation.desired_state is DesiredState.RUN:
        return False
    for_good = trial.killed or trial.experiment_status in _STOPPING_FOR_GOOD
    return trial.allocation.desired_state is DesiredState.PREEMPT or not for_good


def _allocation_entry(allocation: str, trial: TrialState) -> dict[str, Any]:
    """Return the entry of an allocation that is assigned to the agent: state and directives.

    The state is "run" or "kill". For "kill", the entry also has the time in ms that the processes
    get to end.
    """
    current = trial.allocation
    killed = current is not None and current.desired_state is DesiredState.KILL
    entry: dict[str, Any] = {
        "allocation": allocation,
        "state": "kill" if killed else "run",
        "directives": trial_directives(trial),
    }
    if current is not None and killed:
        # The processes of a broken gang wait for the missing node and have nothing to save.
        entry["grace_ms"] = BROKEN_GANG_GRACE_MS if is_broken(current) else GRACE_MS
    return entry


def _removal_entry(allocation: str, session: Session) -> dict[str, Any]:
    """Return the entry of an allocation that no longer belongs on the agent.

    The state is "forget" if the session accepted the allocation's exit: the agent deletes the
    directory. Otherwise the state is "kill".
    """
    state = "forget" if allocation in session.exited else "kill"
    return {"allocation": allocation, "state": state, "directives": None, "grace_ms": GRACE_MS}
