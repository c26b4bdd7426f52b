"""Access of one allocation of a trial to the bucket of checkpoints, for an hour at most.

A trial writes below its own epoch, and reads below its own folder and the checkpoint it starts
from. The credentials themselves are limited to that, whatever else their role allows.
"""

from dataclasses import dataclass, field
from typing import Protocol

from control_plane.actors import addresses
from control_plane.actors.agent.actor import AgentState
from control_plane.actors.step import CommandRefused
from control_plane.agents.service import AgentService
from control_plane.agents.spec import parse_stored_config
from control_plane.checkpoint_stores.trial_storage import credential_scope, storage_fields
from control_plane.config.storage import CheckpointStorage
from control_plane.engine.engine import Engine

SECONDS_MAX = 3600


@dataclass(frozen=True, slots=True)
class StorageCredentials:
    """Credentials that are valid until `expires_ms` (epoch)."""

    key_id: str
    secret: str = field(repr=False)
    session_token: str = field(repr=False)
    expires_ms: int


@dataclass(frozen=True, slots=True)
class StorageAccess:
    """The access that credentials give in `bucket`: to write below the folder `writes`, and to read
    below the folders `reads`.
    """

    bucket: str
    writes: str
    reads: tuple[str, ...]


class CredentialIssuer(Protocol):
    """Issues credentials of a cloud that are limited to an access."""

    def issue_credentials(self, name: str, access: StorageAccess) -> StorageCredentials:
        """Issue credentials for a session called `name`; OSError if the cloud does not answer."""


def allowed_access(
    engine: Engine,
    service: AgentService,
    agent: str,
    allocation: str,
    checkpoints: CheckpointStorage,
) -> StorageAccess:
    """The access that an agent's trial may have.

    Raises CommandRefused: forbidden for an allocation that is not on the agent now, not_found for
    one whose storage needs no credentials from here.
    """
    trial_id, _, epoch = allocation.partition(".")
    state = engine.read_state(addresses.agent(agent))
    desired = state.desired if isinstance(state, AgentState) and not state.lost else ()
    if not any((a.trial_id, a.epoch) == (int(trial_id), int(epoch)) for a in desired):
        raise CommandRefused("forbidden", f"allocation {allocation} is not one of agent {agent}")
    trial = service.read_trial(int(trial_id))
    found = None if trial is None else service.read_experiment(trial.experiment_id)
    if trial is None or found is None or trial.epoch != int(epoch):
        raise CommandRefused("forbidden", f"allocation {allocation} is over")
    experiment, definition = found
    config = parse_stored_config(definition)
    scope = credential_scope(storage_fields(config.checkpoint_storage, checkpoints))
    if scope is None:
        raise CommandRefused("not_found", f"nothing is given out for the storage of {allocation}")
    above = f"{scope.prefix.strip('/')}/" if scope.prefix else ""
    own = f"{above}{experiment.experiment_id}/{trial_id}"
    start = trial.checkpoint or trial.inherited or definition.warm_start
    reads = [own]
    if start is not None and not f"{above}{start.path}".startswith(f"{own}/"):
        reads.append(f"{above}{start.path}")
    return StorageAccess(scope.bucket, f"{own}/{epoch}", tuple(dict.fromkeys(reads)))
