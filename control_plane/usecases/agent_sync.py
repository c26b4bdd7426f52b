"""The sync call of an agent: accept the agent's reports and answer with the desired state.

The agent service answers the call. This module adds three things to the answer: the sizes of model
code, the experiments' best validations, and whether the cluster issues credentials.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from pydantic_core import to_json

from control_plane.actors import addresses
from control_plane.actors.step import CommandRefused
from control_plane.actors.trial.state import TrialState
from control_plane.agents.agent_code import agent_code
from control_plane.agents.draining import drain_agent
from control_plane.agents.fault_reports import FaultReport, report_faults
from control_plane.agents.service import SyncResponse
from control_plane.agents.storage_access import issued_scope
from control_plane.agents.sync_acceptance import SyncRequest
from control_plane.agents.trial_grants import grant_fields
from control_plane.fleet.notices import InstanceNotice, record_notice
from control_plane.objects.store import model_code_key
from control_plane.services import Services
from control_plane.usecases.tunnels import NO_TUNNELS, TunnelList, list_tunnels
from detcloud.shared.version import __version__

# The reason of a notice that the cloud announced to the cluster, not to the machine.
END_REASON = "the cloud announced that this machine will be taken away"


@dataclass(frozen=True)
class AgentAnswer:
    """The answer to a sync call, without the time of the next call."""

    fields: dict[str, Any]
    """The JSON fields of the answer."""
    revision: int
    """A hash of the desired state, the session's epoch and the announced end of the machine."""
    addresses: frozenset[str]
    """The addresses of the trials in the desired state."""
    is_news: bool
    """Whether the agent must start an allocation that it does not know, stop one, or answer a user
    who waits for a tunnel.
    """

    def with_next_sync(self, next_sync_ms: int, patient_ms: int | None = None) -> bytes:
        """Return `fields` and the given times as JSON.

        Args:
            next_sync_ms: the delay until the agent's next call.
            patient_ms: how long the agent may hold back training metrics and logs for its next
                regular call. None leaves the field out, and the agent decides.
        """
        patience = {} if patient_ms is None else {"patient_ms": patient_ms}
        return to_json({**self.fields, "next_sync_ms": next_sync_ms, **patience})


def sync_agent(
    services: Services,
    agent_id: str,
    requests: Sequence[SyncRequest],
    notice: InstanceNotice | None = None,
    incarnation: str = "",
    cached: Sequence[int] = (),
    faults: FaultReport | None = None,
) -> AgentAnswer:
    """Execute an agent's sync call, split into requests; return the answer to the last request.

    Each request stores reports and logs, advances the trials, and renews the agent's lease.

    Args:
        services: the services with the agent service.
        agent_id: the agent.
        requests: the requests of the call, in order; at least one.
        notice: a notice about the agent's machine, or None. The notice is stored. A notice with a
            deadline also drains the agent, which then gets no new work.
        incarnation: the incarnation of the cluster's state that the agent enrolled with; "" from
            agents of older releases.
        cached: the experiments whose packages the agent caches. The answer's field
            `ended_experiments` lists the ended, deleted and unknown ones. Without numbers, the
            answer lacks the field.
        faults: all present faults of the agent's machine, and the use by people. Both are stored
            before the reports, so that no trial that fails by a fault starts again on the faulty
            slot. None: the agent reports no change.

    Raises:
        CommandRefused: "conflict" if `incarnation` is not the current one; nothing is stored.
            "conflict" also for an older session or a lost agent. "not_found", "invalid",
            "too_large" and "unavailable" as in `answer_sync`. The requests before the refused
            request have taken effect.
    """
    *earlier, last = requests
    # Agents of releases without incarnations name none.
    if incarnation not in ("", services.incarnation):
        text = f"the cluster was restored since agent {agent_id} enrolled; enrol again"
        raise CommandRefused("conflict", text)
    if notice is not None:
        # A notice from an earlier session is ignored.
        services.agents.check_session(agent_id, last.epoch)
        _store_notice(services, notice)
    if faults is not None:
        report_faults(services.engine, agent_id, last.epoch, faults)
    for request in earlier:
        services.agents.sync(agent_id, request)
    answer = answer_sync(services, agent_id, last)
    if not cached:
        return answer
    ended = _ended_experiments(services, cached)
    return replace(answer, fields={**answer.fields, "ended_experiments": ended})


def _ended_experiments(services: Services, numbers: Sequence[int]) -> list[int]:
    """Return the experiments of `numbers` that have ended, were deleted or do not exist."""
    experiments, _ = services.experiments.read_experiments(numbers)
    pairs = zip(numbers, experiments, strict=True)
    return [number for number, loaded in pairs if loaded is None or loaded[0].status.is_final]


def _store_notice(services: Services, notice: InstanceNotice) -> None:
    """Store a notice about a machine; drain the machine's agent if the notice has a deadline.

    A notice of the same kind (end, recommendation or failed boot) that is stored already stays as
    it is. A repeated notice with a deadline drains again. Draining happens at once: otherwise
    trials that leave the machine, perhaps with this call, could be placed there again before the
    next provisioner pass. The refusal of a lost or unknown agent is only logged.

    Raises:
        TableError: the state table failed.
    """
    record_notice(services.table, notice, services.now_ms())
    if notice.deadline_ms is not None:
        drain_agent(services.engine, notice.instance, by="notice")


def answer_sync(services: Services, agent_id: str, request: SyncRequest) -> AgentAnswer:
    """Pass an agent's sync request to the agent service; return the answer to the agent.

    The agent service stores the reports and logs in the request, advances the trials, and renews
    the agent's lease. This function completes the entries of the desired state, as `_desired_entry`
    describes.

    Raises:
        CommandRefused: "not_found" for an unknown agent. "conflict" for an older session or a lost
            agent. "invalid" or "too_large" for reports that a session cannot store. "unavailable"
            if concurrent calls of the agent conflict in every attempt.
    """
    answer = services.agents.sync(agent_id, request)
    trial_ids = [_trial_id(entry) for entry in answer.desired]
    bests = _best_validations(answer)
    desired = [
        _desired_entry(services, entry, answer.trials.get(trial_id), bests.get(trial_id))
        for entry, trial_id in zip(answer.desired, trial_ids, strict=True)
    ]
    tunnels = list_tunnels(services, agent_id, answer.tunnels) if answer.tunnels else NO_TUNNELS
    ends = [] if answer.ends_ms is None else [answer.ends_ms]
    # A requested upgrade must end a held call.
    code = _offered_code(answer)
    offered = [code] if code is not None and code["now"] else []
    content = to_json([request.epoch, answer.revision, desired, *ends, *tunnels.entries, *offered])
    revision = int.from_bytes(sha256(content).digest()[:6]) + 1
    return AgentAnswer(
        fields=_answer_fields(answer, revision, desired, tunnels),
        revision=revision,
        addresses=frozenset(addresses.trial(trial_id) for trial_id in trial_ids),
        is_news=any("spec" in entry or entry["state"] != "run" for entry in desired)
        or tunnels.is_awaited,
    )


def _answer_fields(
    answer: SyncResponse,
    revision: int,
    desired: list[dict[str, Any]],
    tunnels: TunnelList,
) -> dict[str, Any]:
    """Return the JSON fields of the answer.

    Some fields are included only in these cases: `tunnels` if tunnels to the agent's allocations
    are open, `notice` if the end of the machine is announced, and `tick_age_ms` if a pass of the
    tick over the pool's instances is recorded. `code` is included for an agent that updates itself
    and runs other code than this cluster has.

    `revision` is the hash of the answer (`AgentAnswer.revision`). `desired` are the entries of the
    desired state, each completed by `_desired_entry`.
    """
    fields = {
        "acked": answer.acked,
        "logs_acked": answer.logs_acked,
        "revision": revision,
        "desired": desired,
        "lease_ms": answer.lease_ms,
    }
    if answer.ends_ms is not None:
        fields["notice"] = {"deadline_ms": answer.ends_ms, "reason": END_REASON}
    if answer.tick_age_ms is not None:
        fields["tick_age_ms"] = answer.tick_age_ms
    if tunnels.entries:
        fields["tunnels"] = tunnels.entries
    if (code := _offered_code(answer)) is not None:
        fields["code"] = code
    return fields


def _offered_code(answer: SyncResponse) -> dict[str, Any] | None:
    """Return the field `code` of the answer: the code that the agent should run.

    `now` is whether an admin requested this code, so that the agent does not wait until it is idle.
    Return None for an agent that does not update itself, or that runs this code.
    """
    if not answer.code:
        return None
    own = agent_code().sha256
    if answer.code == own:
        return None
    return {"version": __version__, "sha256": own, "now": answer.upgrade == own}


def _trial_id(entry: dict[str, Any]) -> int:
    """Return the trial's id in an entry's field `allocation`, which is `TRIAL.EPOCH`."""
    return int(entry["allocation"].partition(".")[0])


def _desired_entry(
    services: Services, entry: dict[str, Any], trial: TrialState | None, best: float | None
) -> dict[str, Any]:
    """Return a copy of an entry of the desired state with the fields that the agent service lacks.

    - `directives` get the experiment's best validation; directives of None are left out.
    - `spec.storage` names the cluster as the source of credentials if the cluster issues them.
    - `spec` gets the cluster's grants, and its slots move to the entry.
    - `code` gets the size of the stored model code in bytes, 0 if the code is missing.

    Args:
        services: the services with the object store, the issuer of credentials and the grants.
        entry: the agent service's entry for an allocation.
        trial: the state of the allocation's trial; None if the trial does not exist.
        best: the best validation of the trial's experiment, or None.
    """
    answered = dict(entry)
    if answered["directives"] is None:
        del answered["directives"]
    else:
        answered["directives"] = {**answered["directives"], "best_validation": best}
    if "spec" in answered:
        spec = dict(answered["spec"])
        if issued_scope(services.credential_issuer, spec["storage"]) is not None:
            spec["storage"] = {**spec["storage"], "credentials": "given"}
        if services.trial_grants is not None and trial is not None:
            spec |= grant_fields(services.trial_grants, spec, trial.settings.pool)
        answered |= {"slots": spec.pop("slots"), "spec": spec}
    if "code" in answered:
        size = services.objects.size(model_code_key(answered["code"]["sha256"]))
        answered["code"] = {**answered["code"], "size": size or 0}
    return answered


def _best_validations(answer: SyncResponse) -> dict[int, float | None]:
    """Return the best validation of each trial's experiment, by the trial's id.

    The value is None for an experiment without a validation or without a state. Trials that do not
    exist are left out.
    """
    bests = {number: state.best_metric for number, state in answer.experiments.items()}
    return {
        trial_id: bests.get(trial.experiment_id)
        for trial_id, trial in answer.trials.items()
        if trial is not None
    }
