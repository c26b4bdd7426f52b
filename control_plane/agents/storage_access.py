"""What one run of a trial may do in the bucket of checkpoints, for an hour at most.

It writes below its own epoch, and reads below its trial and the checkpoint it begins from. What it
is given says so itself, whatever else its role may do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from control_plane.actors import addresses
from control_plane.actors.agent import AgentState
from control_plane.actors.step import Refused
from control_plane.agents.service import AgentService
from control_plane.agents.spec import Checkpoints, storage_of, stored_config
from control_plane.dispatch.engine import Engine

SECONDS_MAX = 3600


@dataclass(frozen=True, slots=True)
class StorageCredentials:
    """Keys that are good until `expires_ms` (epoch)."""

    key_id: str
    secret: str = field(repr=False)
    session_token: str = field(repr=False)
    expires_ms: int


@dataclass(frozen=True, slots=True)
class Access:
    """Places below `bucket`: keys below `writes` may be written, those below `reads` be read."""

    bucket: str
    writes: str
    reads: tuple[str, ...]

    def policy(self) -> dict[str, Any]:
        """As AWS takes it."""
        objects = f"arn:aws:s3:::{self.bucket}"
        reads = [f"{place}/*" for place in self.reads]
        return {
            "Version": "2012-10-17",
            "Statement": [
                {
                    "Effect": "Allow",
                    "Action": ["s3:PutObject", "s3:AbortMultipartUpload"],
                    "Resource": f"{objects}/{self.writes}/*",
                },
                {
                    "Effect": "Allow",
                    "Action": "s3:GetObject",
                    "Resource": [f"{objects}/{place}" for place in reads],
                },
                {
                    "Effect": "Allow",
                    "Action": "s3:ListBucket",
                    "Resource": objects,
                    "Condition": {"StringLike": {"s3:prefix": reads}},
                },
            ],
        }


class Vendor(Protocol):
    """Gives out keys for such an access. Raises OSError where the cloud does not answer."""

    def vend(self, name: str, access: Access) -> StorageCredentials:
        """Keys of a session called `name`."""


def access_of(
    engine: Engine, service: AgentService, agent: str, allocation: str, checkpoints: Checkpoints
) -> Access:
    """What the agent's trial may do. Raises Refused: forbidden for an allocation that is not the
    agent's now, not_found for one whose checkpoints lie elsewhere.
    """
    trial_id, _, epoch = allocation.partition(".")
    state = engine.state(addresses.agent(agent))
    desired = state.desired if isinstance(state, AgentState) and not state.lost else ()
    if not any((it.trial_id, it.epoch) == (int(trial_id), int(epoch)) for it in desired):
        raise Refused("forbidden", f"allocation {allocation} is not one of agent {agent}")
    trial = service.trial(int(trial_id))
    found = None if trial is None else service.experiment(trial.experiment_id)
    if trial is None or found is None or trial.epoch != int(epoch):
        raise Refused("forbidden", f"allocation {allocation} is over")
    experiment, definition = found
    storage = storage_of(stored_config(definition).checkpoint_storage, checkpoints)
    if not vends(storage):
        raise Refused("not_found", f"nothing is given out for the storage of {allocation}")
    assert storage is not None
    above = f"{storage['prefix'].strip('/')}/" if storage.get("prefix") else ""
    own = f"{above}{experiment.experiment_id}/{trial_id}"
    begins = trial.checkpoint or trial.inherited or definition.warm_start
    begin = () if begins is None else (f"{above}{begins.path}",)
    reads = dict.fromkeys((own, *(place for place in begin if not place.startswith(f"{own}/"))))
    return Access(storage["bucket"], f"{own}/{epoch}", tuple(reads))


def vends(storage: Mapping[str, str] | None) -> bool:
    """Whether keys are given out for this storage: it is a bucket, and brings none of its own."""
    return storage is not None and storage["type"] == "s3" and "access_key" not in storage
