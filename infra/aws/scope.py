"""The common context of a stack's resources: parent, names and tags."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi

from infra.aws.names import Names
from infra.aws.settings import Settings
from provisioner.clouds.provider import CLUSTER_TAG


@dataclass(frozen=True)
class Scope:
    """The common context of a stack's resources."""

    settings: Settings
    """The settings of the stack."""
    parent: pulumi.Resource
    """The Pulumi component that contains all resources of the stack."""

    @property
    def names(self) -> Names:
        """The names of the stack's resources."""
        return self.settings.names

    def tags(self, name: str = "") -> dict[str, str]:
        """Return the settings' tags and the cluster's tag.

        With `name`, also return the tag Name with the value of `Names.part(name)`, for example
        `detcloud-TEAM-network`. Resources without a name of their own get the tag Name.
        """
        name_tag = {"Name": self.names.part(name)} if name else {}
        return {**self.settings.tags, CLUSTER_TAG: self.names.cluster, **name_tag}

    def options(self, after: Sequence[pulumi.Resource] = ()) -> pulumi.ResourceOptions:
        """Return options that place a resource under the parent, created after `after`.

        `after` is needed for dependencies whose outputs the resource does not use.
        """
        return pulumi.ResourceOptions(parent=self.parent, depends_on=list(after))
