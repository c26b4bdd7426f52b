"""The interface of a cloud's stack to the deployment: a program of Pulumi, and a check of the
stack's configuration before anything is made.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.findings import Finding
from infra.terraform.provider import TerraformProvider

# Pulumi's project, with whose name the settings of a stack begin.
PROJECT = "detcloud"
# The output that has the setting `otherClouds` as it was deployed, where there is one.
REMOTE_SETTING = "otherClouds"


Progress = Callable[[str], None]
"""Takes a line that says how far a deployment is."""


class SettingsInvalid(Exception):
    """Settings have problems: each is a line with the place, the value and what was expected."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class DrainFailed(Exception):
    """Something of a cluster goes on; the message is for users."""


@dataclass(frozen=True)
class DrainReport:
    """How much of what a cluster made by itself was removed."""

    instances: int
    templates: int


@dataclass(frozen=True)
class DroppedAccount:
    """A remote account that was removed from the settings: its place, its remaining resources, the
    cluster's `instances` there, and the script that removes it.
    """

    cloud: str
    place: str
    instances: tuple[str, ...]
    leftovers: tuple[str, ...]
    removal: str


class RollbackFailed(Exception):
    """Functions could not be moved to another deployment; the message is for users."""


class PruneFailed(Exception):
    """Old versions of functions could not all be removed; the message is for users."""


@dataclass(frozen=True)
class FunctionMove:
    """The move of a function from one of its versions to another; `deployment` describes that."""

    function: str
    before: str
    after: str
    deployment: str


@dataclass(frozen=True)
class ConfigReport:
    """A configuration that is right. `architecture`: the functions'; `warnings`: lines for the one
    who deploys; `needs_archives`: whether anything is made of the functions' archives.
    """

    architecture: str
    warnings: tuple[str, ...] = ()
    needs_archives: bool = True


@dataclass(frozen=True)
class FunctionArchives:
    """The archives that a stack's functions run from, each of a kind and for an architecture.

    Attributes:
        kinds: by the setting of the stack that names an archive, the kind of it.
        name: returns the name of an archive, for its kind and its architecture.
        build: builds the archive of a kind and an architecture in a folder, and returns it.
    """

    kinds: Mapping[str, str]
    name: Callable[[str, str], str]
    build: Callable[[str, str, Path], Path]


@dataclass(frozen=True)
class StackProgram:
    """A cloud's stack.

    Attributes:
        run: the program; it makes the stack that Pulumi's present one is named after.
        check_config: looks at the configuration of a team's stack; raises SettingsInvalid.
        check_account: looks whether the configuration can run in the cloud's account, with the
            credentials of the deployer; raises SettingsInvalid.
        deployer_policy: returns the permissions that the deployer needs, or with True those that
            a key of one's own must give; raises SettingsInvalid.
        drain: ends what the cluster of a team made by itself, and lets it make nothing more; raises
            DrainFailed, SettingsInvalid.
        find_leftovers: returns what the cloud still has of a team's cluster.
        rollback: lets the functions of a team's cluster run as the deployment before the present
            one left them, or with True as the newest did; raises RollbackFailed, SettingsInvalid.
        prune: removes the versions of a team's functions that no rollback needs, and returns how
            many; raises PruneFailed, RollbackFailed, SettingsInvalid.
        stores: types of resources whose content is lost with them.
        archives: what its functions run from.
        terraform: Terraform's provider of the cloud.
        run_export: the program as it is exported to Terraform, where it is not `run`.
        finish: does what no resource does once the stack is deployed, and lets begin again what
            `drain` stopped; raises DrainFailed, SettingsInvalid.
        trust_commands: returns the scripts that make the stack's remote accounts in other clouds,
        or with
            True those that remove them, "" where it has none; raises SettingsInvalid.
        find_remote_leftovers: returns what there is in other clouds of a team's cluster.
        find_dropped_accounts: returns the remote accounts that a former value of `otherClouds` had
        and the
            configuration has no more; raises DrainFailed, SettingsInvalid.
        complete_config: adds to a configuration that is right what the cloud has to be asked for,
            and returns lines for the one who deploys. It is not asked where it may not be.
    """

    run: Callable[[], None]
    check_config: Callable[[str, Mapping[str, object]], ConfigReport]
    check_account: Callable[[str, Mapping[str, object]], list[Finding]]
    deployer_policy: Callable[[str, Mapping[str, object], bool], str]
    drain: Callable[[str, Mapping[str, object], Progress], DrainReport]
    find_leftovers: Callable[[str, Mapping[str, object]], list[str]]
    rollback: Callable[[str, Mapping[str, object], bool, Progress], list[FunctionMove]]
    prune: Callable[[str, Mapping[str, object], Progress], int]
    stores: frozenset[str]
    archives: FunctionArchives
    terraform: TerraformProvider
    run_export: Callable[[], None] | None = None
    trust_commands: Callable[[str, Mapping[str, object], bool], str] = lambda team, config, end: ""
    find_remote_leftovers: Callable[[str, Mapping[str, object]], list[str]] = lambda team, _: []
    find_dropped_accounts: Callable[[str, Mapping[str, object], str], list[DroppedAccount]] = (
        lambda team, config, before: []
    )
    finish: Callable[[str, Mapping[str, object], Progress], None] = lambda team, config, say: None
    complete_config: Callable[[str, dict[str, str]], list[str]] = lambda team, config: []
