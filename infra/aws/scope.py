"""What every part of a stack is made with: whose it is, what it is called, and its tags."""

from collections.abc import Sequence
from dataclasses import dataclass

import pulumi

from infra.aws.names import Names
from infra.aws.settings import Settings
from provisioner.clouds.provider import CLUSTER_TAG


@dataclass(frozen=True)
class Scope:
    """The parts belong to the component `parent`."""

    settings: Settings
    parent: pulumi.Resource

    @property
    def names(self) -> Names:
        return self.settings.names

    def tags(self, name: str = "") -> dict[str, str]:
        """The cluster's tag, and what the part is called where it has no other name."""
        named = {"Name": self.names.part(name)} if name else {}
        return {CLUSTER_TAG: self.names.cluster, **named}

    def options(self, after: Sequence[pulumi.Resource] = ()) -> pulumi.ResourceOptions:
        """Made after those, although nothing of them is named."""
        return pulumi.ResourceOptions(parent=self.parent, depends_on=list(after))
