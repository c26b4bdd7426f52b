"""What agents are answered: the service's answer, completed with what only the API knows."""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from pydantic_core import to_json

from control_plane.actors import addresses
from control_plane.actors.trial_state import TrialState
from control_plane.agents.draining import drain
from control_plane.agents.service import SyncAnswer, SyncRequest
from control_plane.agents.storage_access import vends
from control_plane.api.agent_calls import Sync, sync_requests
from control_plane.api.archives import model_code_key
from control_plane.api.services import Services
from control_plane.fleet.notices import Announcement, announce


@dataclass(frozen=True)
class Answer:
    """An answer's fields but when to call again, and the actors it was made of.

    `revision` names the agent's desired state by its content; offsets are not part of it.
    """

    fields: dict[str, Any]
    revision: int
    addresses: frozenset[str]
    is_news: bool

    def with_next_sync(self, next_sync_ms: int, patient_ms: int | None = None) -> bytes:
        """The answer as JSON. `patient_ms`: how long training metrics and logs may wait for a call
        that is made anyway; None: as long as the agent thinks fit.
        """
        patience = {} if patient_ms is None else {"patient_ms": patient_ms}
        return to_json({**self.fields, "next_sync_ms": next_sync_ms, **patience})


def taken(services: Services, agent_id: str, asked: Sync) -> Answer:
    """Takes a call and makes its answer.

    Raises:
        ApiError: invalid.
        Refused: as AgentService.sync.
    """
    *portions, last = sync_requests(asked)
    if asked.notice is not None:
        # A session that is over says nothing that counts.
        services.agents.check_session(agent_id, last.epoch)
        _noticed(services, Announcement(agent_id, asked.notice.deadline_ms))
    for portion in portions:
        services.agents.sync(agent_id, portion)
    return answered(services, agent_id, last)


def _noticed(services: Services, told: Announcement) -> None:
    """Keeps what an agent says of its machine. One that ends gets nothing more from here on: what
    leaves it, with this very call perhaps, would be put there again before the provisioner looks.
    """
    announce(services.table, told, services.now_ms())
    if told.deadline_ms is not None:
        drain(services.engine, told.instance, by="notice")


def answered(services: Services, agent_id: str, request: SyncRequest) -> Answer:
    """The same for a call in one portion."""
    answer = services.agents.sync(agent_id, request)
    trial_ids = [_trial_id(entry) for entry in answer.desired]
    bests = _best_validations(services, answer.trials.values())
    desired = [
        _completed(services, entry, bests.get(trial_id))
        for entry, trial_id in zip(answer.desired, trial_ids, strict=True)
    ]
    wishes = to_json([request.epoch, answer.revision, desired])
    revision = int.from_bytes(sha256(wishes).digest()[:6]) + 1
    return Answer(
        fields=_fields(answer, revision, desired),
        revision=revision,
        addresses=frozenset(addresses.trial(trial_id) for trial_id in trial_ids),
        is_news=any("spec" in entry or entry["state"] != "run" for entry in desired),
    )


def _fields(answer: SyncAnswer, revision: int, desired: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "acked": answer.acked,
        "logs_acked": answer.logs_acked,
        "revision": revision,
        "desired": desired,
        "lease_ms": answer.lease_ms,
    }


def _trial_id(entry: dict[str, Any]) -> int:
    return int(entry["allocation"].partition(".")[0])


def _completed(services: Services, entry: dict[str, Any], best: float | None) -> dict[str, Any]:
    """With the slots beside the spec, the size of the code and the experiment's best."""
    done = dict(entry)
    if done["directives"] is None:
        del done["directives"]
    else:
        done["directives"] = {**done["directives"], "best_validation": best}
    if "spec" in done:
        spec = dict(done["spec"])
        if services.vendor is not None and vends(spec["storage"]):
            spec["storage"] = {**spec["storage"], "credentials": "given"}
        done |= {"slots": spec.pop("slots"), "spec": spec}
    if "code" in done:
        size = services.objects.size(model_code_key(done["code"]["sha256"]))
        done["code"] = {**done["code"], "size": size or 0}
    return done


def _best_validations(
    services: Services, trials: Iterable[TrialState | None]
) -> dict[int, float | None]:
    """The best of each trial's experiment, by the trial's number."""
    of = {trial.trial_id: trial.experiment_id for trial in trials if trial is not None}
    found = {number: services.agents.experiment(number) for number in set(of.values())}
    bests = {number: it[0].best_metric if it else None for number, it in found.items()}
    return {trial_id: bests[number] for trial_id, number in of.items()}
