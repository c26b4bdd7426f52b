"""The sync call of an agent: reports taken, and the desired state that it is answered.

The agents' service answers each call; this adds what it does not know: the sizes of model code, the
experiment's best validation, and whether the cluster issues credentials.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from pydantic_core import to_json

from control_plane.actors import addresses
from control_plane.actors.step import CommandRefused
from control_plane.actors.trial.state import TrialState
from control_plane.agents.draining import drain_agent
from control_plane.agents.service import SyncRequest, SyncResponse
from control_plane.agents.storage_access import issued_scope
from control_plane.agents.trial_grants import grant_fields
from control_plane.fleet.notices import InstanceNotice, record_notice
from control_plane.objects.store import model_code_key
from control_plane.services import Services

# What a trial hears where the machine itself was told nothing.
END_REASON = "the cloud announced that this machine will be taken away"


@dataclass(frozen=True)
class AgentAnswer:
    """An answer without the time of the next call, and the actors whose states it shows.

    `revision` names the agent's desired state by its content; offsets are not part of it.
    """

    fields: dict[str, Any]
    revision: int
    addresses: frozenset[str]
    is_news: bool

    def with_next_sync(self, next_sync_ms: int, patient_ms: int | None = None) -> bytes:
        """Encode the answer as JSON. `patient_ms`: how long training metrics and logs may wait for
        a call that is made anyway; None: as long as the agent thinks fit.
        """
        patience = {} if patient_ms is None else {"patient_ms": patient_ms}
        return to_json({**self.fields, "next_sync_ms": next_sync_ms, **patience})


def sync_agent(
    services: Services,
    agent_id: str,
    requests: Sequence[SyncRequest],
    notice: InstanceNotice | None = None,
    incarnation: str = "",
) -> AgentAnswer:
    """Take a call in its portions and answer the last. `notice`: what its machine was told.

    Raises:
        CommandRefused: as AgentService.sync, and "conflict" for a call to another `incarnation` of
            the cluster's state.
    """
    *earlier, last = requests
    # Agents of releases without incarnations name none.
    if incarnation not in ("", services.incarnation):
        text = f"the cluster was restored since agent {agent_id} enrolled; enrol again"
        raise CommandRefused("conflict", text)
    if notice is not None:
        # Nothing counts that is said in a session that is over.
        services.agents.check_session(agent_id, last.epoch)
        _store_notice(services, notice)
    for request in earlier:
        services.agents.sync(agent_id, request)
    return answer_sync(services, agent_id, last)


def _store_notice(services: Services, notice: InstanceNotice) -> None:
    """Store what an agent says of its machine. One that ends gets nothing more from here on: what
    leaves it, with this very call perhaps, would be put there again before the provisioner looks.
    """
    record_notice(services.table, notice, services.now_ms())
    if notice.deadline_ms is not None:
        drain_agent(services.engine, notice.instance, by="notice")


def answer_sync(services: Services, agent_id: str, request: SyncRequest) -> AgentAnswer:
    """Take one request and answer it.

    Raises:
        CommandRefused: as AgentService.sync.
    """
    answer = services.agents.sync(agent_id, request)
    trial_ids = [_trial_id(entry) for entry in answer.desired]
    bests = _best_validations(answer)
    desired = [
        _desired_entry(services, entry, answer.trials.get(trial_id), bests.get(trial_id))
        for entry, trial_id in zip(answer.desired, trial_ids, strict=True)
    ]
    ends = [] if answer.ends_ms is None else [answer.ends_ms]
    content = to_json([request.epoch, answer.revision, desired, *ends])
    revision = int.from_bytes(sha256(content).digest()[:6]) + 1
    return AgentAnswer(
        fields=_answer_fields(answer, revision, desired),
        revision=revision,
        addresses=frozenset(addresses.trial(trial_id) for trial_id in trial_ids),
        is_news=any("spec" in entry or entry["state"] != "run" for entry in desired),
    )


def _answer_fields(
    answer: SyncResponse, revision: int, desired: list[dict[str, Any]]
) -> dict[str, Any]:
    fields = {
        "acked": answer.acked,
        "logs_acked": answer.logs_acked,
        "revision": revision,
        "desired": desired,
        "lease_ms": answer.lease_ms,
    }
    if answer.ends_ms is not None:
        fields["notice"] = {"deadline_ms": answer.ends_ms, "reason": END_REASON}
    return fields


def _trial_id(entry: dict[str, Any]) -> int:
    return int(entry["allocation"].partition(".")[0])


def _desired_entry(
    services: Services, entry: dict[str, Any], trial: TrialState | None, best: float | None
) -> dict[str, Any]:
    """An entry as it is answered: the slots beside the spec, the size of the code, and the best
    validation of the experiment.
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
    """The best validation of each trial's experiment, by the trial's id."""
    bests = {number: state.best_metric for number, state in answer.experiments.items()}
    return {
        trial_id: bests.get(trial.experiment_id)
        for trial_id, trial in answer.trials.items()
        if trial is not None
    }
