"""The interface of a cloud's stack for deployments.

A stack is a Pulumi program, with checks of the configuration and further operations.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from infra.findings import Finding, Unknown
from infra.restoration import ObjectsReport, RestoreFailed, RestoreReport, RestoreRequest
from infra.terraform.provider import TerraformProvider
from infra.verification import StackVerifier

# Pulumi's project; names of settings begin with `detcloud:`.
PROJECT = "detcloud"
# The kind of a store that is a bucket.
BUCKET = "bucket"
# The setting for remote accounts, and the stack's output with the deployed value.
REMOTE_SETTING = "otherClouds"


Progress = Callable[[str], None]
"""Function that receives a line about the progress of a deployment."""


class SettingsInvalid(Exception):
    """The settings are invalid.

    `problems` has a line for each problem, with the place, the value and what was expected.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class DrainFailed(Exception):
    """A cluster could not be stopped; instances may be left. The message is for users."""


@dataclass(frozen=True)
class DrainReport:
    """The numbers of removed resources that a cluster had created at run time."""

    instances: int
    """Terminated instances."""
    templates: int
    """Deleted launch templates; 0 in clouds without them."""


@dataclass(frozen=True)
class DroppedAccount:
    """A remote account that was removed from the settings."""

    cloud: str
    """The cloud's name, for example `gcp`."""
    place: str
    """The account or project, in words for messages."""
    instances: tuple[str, ...]
    """The names of the cluster's remaining instances in the account."""
    leftovers: tuple[str, ...]
    """A line for each remaining resource."""
    removal: str
    """The text of a shell script that removes the remaining resources."""


@dataclass(frozen=True)
class Store:
    """A table, database or bucket of a stack, read from the cloud."""

    kind: str
    """The kind in words, for example `table`."""
    name: str
    """The name in the cloud."""
    exists: bool
    """Whether the store exists."""
    trouble: str = ""
    """Why a deployment has to connect the store again; empty if nothing is wrong."""
    refusal: str = ""
    """Why no deployment may be made now; empty if nothing prevents a deployment."""


class RollbackFailed(Exception):
    """Functions could not be moved to another deployment; the message is for users."""


def lacking_functions(
    cloud: str, team: str, lacking: Sequence[str], deployment: str
) -> RollbackFailed:
    """Return the error about functions without a version of the deployment to roll back to."""
    return RollbackFailed(
        f"the deployment {deployment} has no version of {', '.join(lacking)}, so nothing was "
        "rolled back: its release does not have the function, or the version was deleted. To run "
        "an earlier release, install it with `pip install detcloud==VERSION`, and run `detcloud "
        f"deploy {cloud} --team {team}`"
    )


class PruneFailed(Exception):
    """Old versions of functions could not all be removed; the message is for users."""


@dataclass(frozen=True)
class FunctionMove:
    """The move of a function from one version to another."""

    function: str
    """The function's name in the cluster, for example `tick`."""
    before: str
    """The former version."""
    after: str
    """The new version; equal to `before` if the function did not move."""
    deployment: str
    """The description of the deployment that published the new version."""


@dataclass(frozen=True)
class ConfigReport:
    """The result of checking a valid configuration."""

    architecture: str
    """The functions' processor, such as `arm64`."""
    warnings: tuple[str, ...] = ()
    """Lines for the deployer."""
    needs_archives: bool = True
    """Whether the deployment uses archives of functions."""


@dataclass(frozen=True)
class FunctionArchives:
    """The archives that a stack's functions run from.

    The kind of an archive, `functions` or `suggest`, decides which packages the archive contains.
    """

    kinds: Mapping[str, str]
    """The kind of archive, by the name of the setting with the archive's path."""
    name: Callable[[str, str], str]
    """Returns an archive's file name, for a kind and an architecture, for example `arm64`."""
    build: Callable[[str, str, Path], Path]
    """Builds the archive of a kind and an architecture in a folder; returns the path."""


def _refuse_restore(
    team: str, config: Mapping[str, object], request: RestoreRequest, progress: Progress
) -> RestoreReport:
    """Raise RestoreFailed, for a cloud without restores."""
    raise RestoreFailed(f"the state of {team} cannot be restored in this cloud")


def _refuse_objects(
    team: str, config: Mapping[str, object], moment: datetime | None, progress: Progress
) -> ObjectsReport:
    """Raise RestoreFailed, for a cloud without restores."""
    raise RestoreFailed(f"the objects of {team} cannot be restored in this cloud")


@dataclass(frozen=True)
class StackProgram:
    """A cloud's stack: a Pulumi program, and operations on a team's stack.

    The first arguments of most operations are the team's name and the stack's configuration. They
    raise SettingsInvalid for an invalid configuration.
    """

    run: Callable[[], None]
    """The Pulumi program of the stack that Pulumi has selected."""
    check_config: Callable[[str, Mapping[str, object]], ConfigReport]
    """Checks the configuration without calling the cloud."""
    check_account: Callable[[str, Mapping[str, object]], list[Finding]]
    """Checks with the deployer's credentials whether the stack can run in the cloud's account."""
    deployer_policy: Callable[[str, Mapping[str, object], bool], str]
    """Returns the permissions that the deployer needs; with True, those of the encryption key."""
    drain: Callable[[str, Mapping[str, object], Progress], DrainReport]
    """Stops launches, and removes instances and launch templates. Raises DrainFailed."""
    find_leftovers: Callable[[str, Mapping[str, object]], list[str]]
    """Returns the names of the cluster's remaining resources in the stack's own cloud."""
    rollback: Callable[[str, Mapping[str, object], bool, Progress], list[FunctionMove]]
    """Moves functions to the previous deployment, or with True to the newest deployment.

    Raises RollbackFailed, after which some functions may have moved.
    """
    prune: Callable[[str, Mapping[str, object], Progress], int]
    """Deletes versions of functions that no rollback needs; returns their number.

    Raises PruneFailed and RollbackFailed.
    """
    open_verifier: Callable[[str, Mapping[str, object]], StackVerifier]
    """Returns the calls of the cloud for the self-test of a deployed cluster."""
    stores: frozenset[str]
    """Pulumi's types of resources that lose data when deleted or replaced."""
    archives: FunctionArchives
    """The archives of the stack's functions."""
    terraform: TerraformProvider
    """Terraform's provider for the cloud."""
    run_export: Callable[[], None] | None = None
    """The program for exports to Terraform; None if `run` is exported."""
    trust_commands: Callable[[str, Mapping[str, object], bool], str] = lambda team, config, end: ""
    """Returns the scripts that create remote accounts, or with True the removal scripts.

    Returns "" without remote accounts.
    """
    find_remote_leftovers: Callable[[str, Mapping[str, object]], list[str]] = lambda team, _: []
    """Returns a line for each remaining resource of the cluster in other clouds, or for a remote
    account that cannot be read.
    """
    find_dropped_accounts: Callable[[str, Mapping[str, object], str], list[DroppedAccount]] = (
        lambda team, config, before: []
    )
    """Returns remote accounts that the former text of `otherClouds` has and the settings have not.

    Raises DrainFailed if an account cannot be read.
    """
    finish: Callable[[str, Mapping[str, object], Progress], None] = lambda team, config, say: None
    """Completes a deployment with steps that no resource covers, and restarts a drained cluster.

    Raises DrainFailed.
    """
    complete_config: Callable[[str, dict[str, str]], list[str]] = lambda team, config: []
    """Adds to the given configuration the defaults that only the cloud knows.

    Returns a warning for each default that the cloud did not provide.
    """
    launch_policy: Callable[[str, Mapping[str, object]], str] | None = None
    """Returns the permissions with which the check asks the cloud about the pools' launches.

    None if the check needs no further permissions.
    """
    read_stores: Callable[[str, Mapping[str, object]], list[Store] | Unknown] = (
        lambda team, config: []
    )
    """Returns the stack's table or database and its buckets as the cloud lists them now.

    Unknown if the cloud refuses a call.
    """
    restore: Callable[[str, Mapping[str, object], RestoreRequest, Progress], RestoreReport] = (
        _refuse_restore
    )
    """Restores the cluster's state, and starts the functions again. Raises RestoreFailed.

    A call after a crash or an error continues.
    """
    restore_objects: Callable[
        [str, Mapping[str, object], datetime | None, Progress], ObjectsReport
    ] = _refuse_objects
    """Restores lost objects of the stack's buckets: code, logs, metrics and checkpoint files.

    With a time, versions of this time. The functions run meanwhile. Raises RestoreFailed. A call
    after a crash or an error continues.
    """
    restore_policy: Callable[[str, Mapping[str, object]], str] = lambda team, config: ""
    """Returns the permissions that a restore needs in addition to those of the deployer."""
