"""The operations of a StackProgram on remote accounts, which are equal in all clouds."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from control_plane.config.pools import check_cluster
from infra.cluster_config_file import read_cluster_config
from infra.remote_accounts import Launcher, RemoteAccount
from infra.remote_settings import (
    list_dropped_accounts,
    list_remote_leftovers,
    render_commands,
    render_removals,
)
from infra.stack_program import DroppedAccount

Names = TypeVar("Names", covariant=True)
AnyNames = TypeVar("AnyNames")


class StackSettings(Protocol[Names]):
    """The settings of a stack that remote accounts depend on."""

    @property
    def names(self) -> Names:
        """The names of the stack's resources."""

    @property
    def cluster_config(self) -> str:
        """The path of the cluster configuration."""

    @property
    def remote_accounts(self) -> Mapping[str, RemoteAccount]:
        """The remote accounts, by the cloud's name."""


@dataclass(frozen=True)
class RemoteCommands(Generic[AnyNames]):
    """The commands for the remote accounts of stacks in a cloud."""

    cloud: str
    """The stacks' own cloud."""
    read_settings: Callable[[str, Mapping[str, object]], StackSettings[AnyNames]]
    """Returns the settings of a team's stack configuration; raises SettingsInvalid."""
    launcher_of: Callable[[AnyNames], Launcher]
    """Returns the function that launches instances, for the names of a stack."""

    def trust_commands(
        self, team: str, stack_config: Mapping[str, object], is_removal: bool
    ) -> str:
        """Return the scripts for creating or, with `is_removal`, removing all remote accounts.

        Return "" without remote accounts. Raise SettingsInvalid if the settings or the cluster
        configuration are invalid.
        """
        settings = self.read_settings(team, stack_config)
        if is_removal:
            return render_removals(settings.remote_accounts)
        cluster = check_cluster(read_cluster_config(Path(settings.cluster_config)))
        return render_commands(settings.remote_accounts, cluster)

    def find_remote_leftovers(self, team: str, stack_config: Mapping[str, object]) -> list[str]:
        """Return a line for each resource that a cluster still has in other clouds.

        An account that cannot be read has one line that says so. Raise SettingsInvalid.
        """
        return list_remote_leftovers(self.read_settings(team, stack_config).remote_accounts)

    def find_dropped_accounts(
        self, team: str, stack_config: Mapping[str, object], before: str
    ) -> list[DroppedAccount]:
        """Return the remote accounts that the settings dropped.

        `before` is the former text of `otherClouds`. Accounts without remaining resources are left
        out. Raise DrainFailed if `before` or an account cannot be read, and SettingsInvalid.
        """
        settings = self.read_settings(team, stack_config)
        launcher = self.launcher_of(settings.names)
        return list_dropped_accounts(before, self.cloud, launcher, settings.remote_accounts)
