"""The desired state of an agent, built from its own state, its trials and their experiments."""

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
BROKEN_GANG_GRACE_MS = 4_000
# Below the ports that systems assign to connections, and above those of well-known services.
PORT_FIRST = 20_480
PORT_BLOCKS = 1_024
PORTS_PER_BLOCK = 8

_STOPPING_FOR_GOOD = (Status.STOPPING_KILLED, Status.STOPPING_ERROR)

SpecBuilder = Callable[[ExperimentState, Definition, TrialState], dict[str, Any]]
"""Builds `in/spec.json`, without the fields that depend on the agent."""


@dataclass(frozen=True, slots=True)
class TrialSource:
    """The sources of a desired state: trials and experiments by id, None if there is none, the
    builder of specs, and the network addresses of agents.
    """

    read_trial: Callable[[int], TrialState | None]
    read_experiment: Callable[[int], tuple[ExperimentState, Definition] | None]
    build_spec: SpecBuilder
    read_address: Callable[[str], str]


def desired_entries(
    agent: AgentState, session: Session, known: Iterable[str], trials: TrialSource
) -> list[dict[str, Any]]:
    """The entries of an agent's desired state: one for each allocation that belongs on the agent or
    is still there. `known` are the allocations that the agent has.
    """
    entries = []
    placed = set[str]()
    have = set(known)
    is_crowded = _is_crowded(agent, session, have)
    for desired in agent.desired:
        allocation = f"{desired.trial_id}.{desired.epoch}"
        placed.add(allocation)
        trial = trials.read_trial(desired.trial_id)
        if trial is None or trial.epoch != desired.epoch or trial.status.is_final:
            if allocation in have:
                entries.append(_removal_entry(allocation, session))
            continue
        entry = _allocation_entry(allocation, trial)
        if allocation not in have and (is_crowded or _is_unplaced(desired, trial)):
            # Its slots are still in use, or its other nodes are not placed yet.
            entries.append({"allocation": allocation, "state": "wait", "directives": None})
            continue
        found = None if allocation in have else trials.read_experiment(trial.experiment_id)
        if found is not None:
            experiment, definition = found
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
    entries += [_removal_entry(name, session) for name in sorted(have - placed)]
    return entries


def trial_directives(trial: TrialState) -> dict[str, Any]:
    """The fields of `in/directives.json` for the trial's current allocation, without the best
    validation.
    """
    allocation = trial.allocation
    reason = allocation.wish_reason if allocation else ""
    return {
        **({"length_unit": "epochs"} if trial.counts_epochs else {}),
        "revision": trial.revision,
        "length": trial.length,
        "length_units": trial.length_units,
        "closed": trial.closed,
        # What runs again for its end is given its length again, and so may train what it lost.
        "answered": 0 if trial.must_end_again else trial.answered,
        "preempt": {"deadline_ms": None, "reason": reason} if _is_preempted(trial) else None,
    }


def rendezvous_port(cluster_id: str, allocation: str) -> int:
    """The port on the first node's machine at which the nodes of an allocation find each other.

    Trials whose ids are close have different ports, as have successive allocations of a trial,
    since a process of the previous one may still hold its port.
    """
    trial_id, _, epoch = allocation.partition(".")
    block = (int(trial_id) + crc32(cluster_id.encode())) % PORT_BLOCKS
    return PORT_FIRST + block * PORTS_PER_BLOCK + int(epoch) % PORTS_PER_BLOCK


def _is_crowded(agent: AgentState, session: Session, have: set[str]) -> bool:
    """Whether the agent has an allocation that does not belong there any more, whose slots may have
    been given away: an agent that was lost comes back with it.
    """
    placed = {f"{desired.trial_id}.{desired.epoch}" for desired in agent.desired}
    return not have.issubset({*placed, *session.exited})


def _is_unplaced(desired: DesiredAllocation, trial: TrialState) -> bool:
    held = trial.allocation
    return desired.nodes > 1 and (held is None or len(held.places) < desired.nodes)


def _node_fields(
    desired: DesiredAllocation, trial: TrialState, agent: AgentState, address: Callable[[str], str]
) -> dict[str, Any]:
    """The spec's fields about nodes: the agent, its rank among them, and the addresses of all. Each
    node starts one process.
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
    """Whether the trial is to save its work and end for now."""
    if trial.allocation is None or trial.allocation.wish is DesiredState.RUN:
        return False
    for_good = trial.killed or trial.experiment_status in _STOPPING_FOR_GOOD
    return trial.allocation.wish is DesiredState.PREEMPT or not for_good


def _allocation_entry(allocation: str, trial: TrialState) -> dict[str, Any]:
    held = trial.allocation
    killed = held is not None and held.wish is DesiredState.KILL
    entry: dict[str, Any] = {
        "allocation": allocation,
        "state": "kill" if killed else "run",
        "directives": trial_directives(trial),
    }
    if held is not None and killed:
        # Processes that wait for one that is gone have nothing to save.
        entry["grace_ms"] = BROKEN_GANG_GRACE_MS if is_broken(held) else GRACE_MS
    return entry


def _removal_entry(allocation: str, session: Session) -> dict[str, Any]:
    """The entry of an allocation that does not belong on the agent any more: it is stopped, and
    deleted once its exit was reported.
    """
    state = "forget" if allocation in session.exited else "kill"
    return {"allocation": allocation, "state": state, "directives": None, "grace_ms": GRACE_MS}
