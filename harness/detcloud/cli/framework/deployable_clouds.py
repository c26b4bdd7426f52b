"""The registry of clouds to which the command line can deploy a team's cluster.

A new cloud needs an entry in CLOUDS. The commands `detcloud deploy NAME` and the choices of
`--cloud NAME` are made from CLOUDS.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from detcloud.shared.errors import DetcloudError


class DeployableCloud(NamedTuple):
    """A cloud with a stack in `infra`. docs/NAME.md describes the cloud."""

    name: str
    """The name in commands and in `infra.clouds`."""
    title: str
    """The name in messages and help texts."""
    packages: tuple[str, ...]
    """The packages of the extra `infra` that a deployment to this cloud imports."""


CLOUDS: Final = (
    DeployableCloud("aws", "AWS", ("pulumi", "pulumi_aws", "botocore")),
    DeployableCloud("gcp", "Google Cloud", ("pulumi", "pulumi_gcp", "urllib3")),
)


def find_cloud(name: str) -> DeployableCloud:
    """Return the cloud of CLOUDS with this name.

    Raises:
        DetcloudError: CLOUDS has no cloud with this name.
    """
    for cloud in CLOUDS:
        if cloud.name == name:
            return cloud
    known = " or ".join(cloud.name for cloud in CLOUDS)
    raise DetcloudError(f"{name!r} is not a known cloud; expected {known}")
