"""The check of a deployed stack's stores before a deployment.

Pulumi compares the program with its own state, which does not show what happened in the cloud
meanwhile. Two such events matter: a lost store, which a deployment must not replace by an empty
one, and a restored table, which has another stream.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from infra.engine import DeployFailed
from infra.findings import Unknown
from infra.stack_program import BUCKET, Progress, StackProgram, Store


@dataclass(frozen=True)
class RefreshChoice:
    """How a deployment treats differences between Pulumi's state and the cloud."""

    cloud: str
    """The name of the stack's cloud in commands."""
    asked: bool = False
    """Whether the user asks for a refresh: `--refresh`."""
    new_stores: bool = False
    """Whether lost stores are created again, empty: `--new-stores`."""


def needs_refresh(
    program: StackProgram,
    team: str,
    config: Mapping[str, str],
    choice: RefreshChoice,
    progress: Progress,
    *,
    is_deployed: bool,
) -> bool:
    """Return whether Pulumi must read all resources from the cloud before the deployment.

    The stores of a deployed stack are read from the cloud. A lost store or a connection to a former
    store requires a refresh, and so does the user's choice. Report the reason. Report a warning if
    the cloud does not describe the stores.

    Args:
        is_deployed: whether Pulumi's state has outputs of an earlier deployment. Otherwise the
            stores do not exist yet.

    Raises:
        DeployFailed: a store is lost, and the user did not ask for new stores. Or a restore of the
            state has not finished.
        SettingsInvalid: the configuration is invalid.
    """
    if not is_deployed:
        return False
    stores = program.read_stores(team, config)
    if isinstance(stores, Unknown):
        progress(f"warning: the stores could not be checked: {stores.why}; needs {stores.needs}")
        return choice.asked or choice.new_stores
    for store in stores:
        if store.refusal:
            raise DeployFailed(
                f"the {store.kind} {store.name}: {store.refusal}, so nothing was deployed: run "
                f"`detcloud deploy restore {choice.cloud} --team {team}` as before, which continues"
            )
    lost = [store for store in stores if not store.exists]
    if lost and not choice.new_stores:
        raise DeployFailed(_describe_loss(lost, choice.cloud, team))
    for store in lost:
        progress(f"the {store.kind} {store.name} is lost and will be created again, empty")
    if any(store.kind == BUCKET for store in lost):
        progress(
            "after this deployment, restore the objects from the copies, and list the lost "
            f"checkpoints: `{_objects_command(choice.cloud, team)}`"
        )
    changed = [store for store in stores if store.exists and store.trouble]
    for store in changed:
        progress(f"the {store.kind} {store.name}: {store.trouble}")
    return choice.asked or bool(lost) or bool(changed)


def _describe_loss(lost: Sequence[Store], cloud: str, team: str) -> str:
    """Return the message about lost stores, with the possible remedies."""
    names = ", ".join(f"the {store.kind} {store.name}" for store in lost)
    return (
        f"{names} had been deployed and no longer exists, so nothing was deployed: a deployment "
        "would create an empty replacement, and the cluster would lose its state. `detcloud deploy "
        f"restore {cloud} --team {team}` restores a table or database from a backup "
        "(docs/recovery.md). `--new-stores` creates what is lost again, empty; then "
        f"`{_objects_command(cloud, team)}` restores the objects of buckets from copies"
    )


def _objects_command(cloud: str, team: str) -> str:
    """Return the command that restores lost objects."""
    return f"detcloud deploy restore {cloud} --team {team} --objects"
