"""The common context of a stack's resources: parent, names and labels."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi

from infra.gcp.names import Names
from infra.gcp.settings import Settings
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

    @property
    def labels(self) -> dict[str, str]:
        """The settings' labels and the cluster's label."""
        return {**self.settings.labels, CLUSTER_TAG: self.names.cluster}

    def options(self, after: Sequence[pulumi.Resource] = ()) -> pulumi.ResourceOptions:
        """Return options that place a resource under the parent, created after `after`.

        `after` is needed for dependencies whose outputs the resource does not use.
        """
        return pulumi.ResourceOptions(parent=self.parent, depends_on=list(after))
