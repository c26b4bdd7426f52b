"""Access of one allocation of a trial to the bucket of checkpoints, for an hour at most.

A trial writes below its own epoch and where its files for TensorBoard are, and reads below its own
folder and the checkpoint it starts from. The credentials themselves are limited to that, whatever
else their role allows.
"""

from control_plane.actors.step import CommandRefused
from control_plane.agents.running_trial import RunningTrial
from control_plane.agents.spec import parse_stored_config
from control_plane.agents.storage_credentials import CredentialIssuer, StorageAccess
from control_plane.checkpoint_stores.store_type import CredentialScope, StorageFields
from control_plane.checkpoint_stores.trial_storage import credential_scope, storage_fields
from control_plane.config.storage import CheckpointStorage
from detcloud.shared.event_parts import TENSORBOARD_FOLDER


def issued_scope(
    issuer: CredentialIssuer | None, fields: StorageFields | None
) -> CredentialScope | None:
    """The scope of the credentials that are issued to trials with that `storage`, None for none."""
    if issuer is None or fields is None or fields["type"] != issuer.store_type:
        return None
    return credential_scope(fields)


def allowed_access(
    running: RunningTrial, allocation: str, own: CheckpointStorage, issuer: CredentialIssuer
) -> StorageAccess:
    """The access that a running trial may have; `own` is the cluster's store of checkpoints.

    Raises CommandRefused: not_found for one whose storage needs no credentials from here.
    """
    trial, definition = running.trial, running.definition
    config = parse_stored_config(definition)
    scope = issued_scope(issuer, storage_fields(config.checkpoint_storage, own))
    if scope is None:
        raise CommandRefused(
            "not_found", f"no credentials are issued for the storage of {allocation}"
        )
    above = f"{scope.prefix.strip('/')}/" if scope.prefix else ""
    own_place = f"{running.experiment.experiment_id}/{trial.trial_id}"
    folder, events = f"{above}{own_place}", f"{above}{TENSORBOARD_FOLDER}/{own_place}"
    start = trial.checkpoint or trial.inherited or definition.warm_start
    reads = [folder]
    if start is not None and not f"{above}{start.path}".startswith(f"{folder}/"):
        reads.append(f"{above}{start.path}")
    return StorageAccess(scope.bucket, (f"{folder}/{trial.epoch}", events), tuple(reads))
