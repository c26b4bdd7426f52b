"""The scope of a stack, which every part is made in: the parent, names and labels."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi

from infra.gcp.names import Names
from infra.gcp.settings import Settings
from provisioner.clouds.provider import CLUSTER_TAG


@dataclass(frozen=True)
class Scope:
    """The settings of a stack, and the component `parent` that its parts belong to."""

    settings: Settings
    parent: pulumi.Resource

    @property
    def names(self) -> Names:
        return self.settings.names

    @property
    def labels(self) -> dict[str, str]:
        """The settings' labels and the cluster's."""
        return {**self.settings.labels, CLUSTER_TAG: self.names.cluster}

    def options(self, after: Sequence[pulumi.Resource] = ()) -> pulumi.ResourceOptions:
        """Return options for a resource that depends on others without using their outputs."""
        return pulumi.ResourceOptions(parent=self.parent, depends_on=list(after))
