"""The commands of a stack's program for the remote accounts of its settings, in any cloud."""

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
        """The names of what the stack makes."""

    @property
    def cluster_config(self) -> str:
        """The path of the cluster configuration."""

    @property
    def remote_accounts(self) -> Mapping[str, RemoteAccount]:
        """The remote accounts, by the types of their providers."""


@dataclass(frozen=True)
class RemoteCommands(Generic[AnyNames]):
    """The commands for the remote accounts of stacks in a cloud.

    Attributes:
        cloud: the stacks' own cloud.
        read_settings: reads the settings of a team's stack; raises SettingsInvalid.
        launcher_of: returns the function that launches instances.
    """

    cloud: str
    read_settings: Callable[[str, Mapping[str, object]], StackSettings[AnyNames]]
    launcher_of: Callable[[AnyNames], Launcher]

    def trust_commands(
        self, team: str, stack_config: Mapping[str, object], is_removal: bool
    ) -> str:
        """Return the scripts that make the cluster's remote accounts in other clouds, or that
        remove them. Raises SettingsInvalid.
        """
        settings = self.read_settings(team, stack_config)
        if is_removal:
            return render_removals(settings.remote_accounts)
        cluster = check_cluster(read_cluster_config(Path(settings.cluster_config)))
        return render_commands(settings.remote_accounts, cluster)

    def find_remote_leftovers(self, team: str, stack_config: Mapping[str, object]) -> list[str]:
        """Return what there is of a cluster in other clouds. Raises SettingsInvalid."""
        return list_remote_leftovers(self.read_settings(team, stack_config).remote_accounts)

    def find_dropped_accounts(
        self, team: str, stack_config: Mapping[str, object], before: str
    ) -> list[DroppedAccount]:
        """Return the remote accounts that `otherClouds` had with the text `before`, and has no
        more. Raises DrainFailed, SettingsInvalid.
        """
        settings = self.read_settings(team, stack_config)
        launcher = self.launcher_of(settings.names)
        return list_dropped_accounts(before, self.cloud, launcher, settings.remote_accounts)
