"""The scope of a stack, which every part is made in: the parent, names and tags."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi

from infra.aws.names import Names
from infra.aws.settings import Settings
from provisioner.clouds.provider import CLUSTER_TAG


@dataclass(frozen=True)
class Scope:
    """The settings of a stack, and the component `parent` that its parts belong to."""

    settings: Settings
    parent: pulumi.Resource

    @property
    def names(self) -> Names:
        return self.settings.names

    def tags(self, name: str = "") -> dict[str, str]:
        """Return the settings' tags, the cluster's, and a part's name where it has no other."""
        name_tag = {"Name": self.names.part(name)} if name else {}
        return {**self.settings.tags, CLUSTER_TAG: self.names.cluster, **name_tag}

    def options(self, after: Sequence[pulumi.Resource] = ()) -> pulumi.ResourceOptions:
        """Return options for a resource that depends on others without using their outputs."""
        return pulumi.ResourceOptions(parent=self.parent, depends_on=list(after))
