"""The desired state of an agent, put together from its head, its trials' heads and their
experiments.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from control_plane.actors.agent import AgentState, Desired
from control_plane.actors.experiment_state import Definition, ExperimentState
from control_plane.actors.records import Status
from control_plane.actors.trial_state import TrialState, Wish
from control_plane.agents.sessions import Session

GRACE_MS = 15_000
# Below the ports that systems give to connections, and above those of well-known services.
PORT_FIRST = 20_480
PORT_BLOCKS = 1_024
PORTS_PER_BLOCK = 8

_FOR_GOOD = (Status.STOPPING_KILLED, Status.STOPPING_ERROR)

SpecOf = Callable[[ExperimentState, Definition, TrialState], dict[str, Any]]
"""Builds `in/spec.json` but for what the agent adds."""


@dataclass(frozen=True, slots=True)
class Trials:
    """Access to what the desired state is made of, each None if there is none; and the address of
    an agent.
    """

    trial: Callable[[int], TrialState | None]
    experiment: Callable[[int], tuple[ExperimentState, Definition] | None]
    spec: SpecOf
    address: Callable[[str], str]


def desired_of(
    agent: AgentState, session: Session, known: Iterable[str], trials: Trials
) -> list[dict[str, Any]]:
    """One entry per allocation that belongs on the agent or is still there."""
    entries = []
    wanted = set[str]()
    have = set(known)
    is_crowded = _is_crowded(agent, session, have)
    for desired in agent.desired:
        allocation = f"{desired.trial_id}.{desired.epoch}"
        wanted.add(allocation)
        trial = trials.trial(desired.trial_id)
        if trial is None or trial.epoch != desired.epoch or trial.status.final:
            if allocation in have:
                entries.append(_unwanted(allocation, session))
            continue
        entry = _entry(allocation, trial)
        if allocation not in have and (is_crowded or _is_unplaced(desired, trial)):
            # Its slots are still in use, or it has not heard yet where its other nodes are.
            entries.append({"allocation": allocation, "state": "wait", "directives": None})
            continue
        found = None if allocation in have else trials.experiment(trial.experiment_id)
        if found is not None:
            experiment, definition = found
            spec = trials.spec(experiment, definition, trial)
            entry["spec"] = {
                **spec,
                "allocation_id": allocation,
                "epoch": desired.epoch,
                "slots": list(desired.slots),
                **_nodes(desired, trial, agent, trials.address),
                "rendezvous_port": rendezvous_port(str(spec.get("cluster_id", "")), allocation),
            }
            entry["code"] = {
                "sha256": definition.code_sha256,
                "path": f"/api/v1/model-code/{definition.code_sha256}",
            }
        entries.append(entry)
    entries += [_unwanted(name, session) for name in sorted(have - wanted)]
    return entries


def directives_of(trial: TrialState) -> dict[str, Any]:
    """`in/directives.json` of the trial's current allocation, but for the best validation."""
    allocation = trial.allocation
    reason = allocation.wish_reason if allocation else ""
    return {
        "revision": trial.revision,
        "length": trial.length,
        "closed": trial.closed,
        "answered": trial.answered,
        "preempt": {"deadline_ms": None, "reason": reason} if _is_preempted(trial) else None,
    }


def rendezvous_port(cluster_id: str, allocation: str) -> int:
    """Where the nodes of an allocation meet, on the machine of the first one.

    Trials whose numbers are close have ports of their own, as have the allocations of a trial that
    come one after the other, since a process of the one before may still hold its port.
    """
    trial_id, _, epoch = allocation.partition(".")
    block = (int(trial_id) + crc32(cluster_id.encode())) % PORT_BLOCKS
    return PORT_FIRST + block * PORTS_PER_BLOCK + int(epoch) % PORTS_PER_BLOCK


def _is_crowded(agent: AgentState, session: Session, have: set[str]) -> bool:
    """Whether something runs there that has no place there any more: an agent that was lost comes
    back with it, when its slots may have been given away.
    """
    placed = {f"{desired.trial_id}.{desired.epoch}" for desired in agent.desired}
    return not have.issubset({*placed, *session.exited})


def _is_unplaced(desired: Desired, trial: TrialState) -> bool:
    held = trial.allocation
    return desired.nodes > 1 and (held is None or len(held.places) < desired.nodes)


def _nodes(
    desired: Desired, trial: TrialState, agent: AgentState, address: Callable[[str], str]
) -> dict[str, Any]:
    """Which node the agent is, and where all of them are. Each of them starts one process."""
    hosts = [agent.address]
    if desired.nodes > 1 and trial.allocation is not None:
        hosts = [address(name) for name in trial.allocation.agents]
    return {
        "rank": desired.node_rank,
        "size": desired.nodes,
        "node_rank": desired.node_rank,
        "nodes": desired.nodes,
        "hosts": hosts,
    }


def _is_preempted(trial: TrialState) -> bool:
    """Whether it is to save its work, as far as it can, and end for now."""
    if trial.allocation is None or trial.allocation.wish is Wish.RUN:
        return False
    for_good = trial.killed or trial.experiment_status in _FOR_GOOD
    return trial.allocation.wish is Wish.PREEMPT or not for_good


def _entry(allocation: str, trial: TrialState) -> dict[str, Any]:
    held = trial.allocation
    killed = held is not None and held.wish is Wish.KILL
    entry: dict[str, Any] = {
        "allocation": allocation,
        "state": "kill" if killed else "run",
        "directives": directives_of(trial),
    }
    if killed:
        entry["grace_ms"] = GRACE_MS
    return entry


def _unwanted(allocation: str, session: Session) -> dict[str, Any]:
    """What has no place here any more is stopped, and once its exit was taken, deleted."""
    state = "forget" if allocation in session.exited else "kill"
    return {"allocation": allocation, "state": state, "directives": None, "grace_ms": GRACE_MS}
