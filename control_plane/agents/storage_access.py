"""Access of an allocation to the bucket of checkpoints, for at most an hour.

An allocation may write below the folder of its own epoch and below the trial's TensorBoard folder.
The allocation may read below the trial's folder and below the checkpoint that the run starts from.
The credentials enforce these limits, even if the role behind the credentials allows more.
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
    """Return the bucket and prefix for which `issuer` gives trials credentials.

    Return None without an issuer, without `fields`, or if `fields` describe another type of store
    or a store without credentials.

    Args:
        issuer: the issuer of the cluster's cloud, None if the cluster issues no credentials.
        fields: the `storage` of the trial's spec.
    """
    if issuer is None or fields is None or fields["type"] != issuer.store_type:
        return None
    return credential_scope(fields)


def allowed_access(
    running: RunningTrial, allocation: str, own: CheckpointStorage, issuer: CredentialIssuer
) -> StorageAccess:
    """Return the access to checkpoints that an allocation of a running trial may have.

    The allocation may write to the folder of its epoch, which is its number within the trial, and
    to the folder of the trial's TensorBoard events. It may read the trial's folder and the
    checkpoint that the run starts from. Nothing is issued yet.

    Args:
        running: the trial with its experiment.
        allocation: the allocation's name, for the error.
        own: the cluster's checkpoint store, for experiments whose configuration names no store.
        issuer: the issuer, which decides the type of store.

    Raises:
        CommandRefused: "not_found" if `issuer` issues no credentials for the trial's storage.
        ValueError, KeyError: the stored configuration is not valid for this release.
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
    start = trial.checkpoint or trial.inherited_checkpoint or definition.warm_start
    reads = [folder]
    if start is not None and not f"{above}{start.path}".startswith(f"{folder}/"):
        reads.append(f"{above}{start.path}")
    return StorageAccess(scope.bucket, (f"{folder}/{trial.epoch}", events), tuple(reads))
