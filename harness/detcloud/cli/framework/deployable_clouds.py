"""The clouds that a team's cluster can be deployed to: the registry of the command line.

A new cloud adds its line here, which `detcloud deploy NAME` and `--cloud NAME` come from.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from detcloud.shared.errors import DetcloudError


class DeployableCloud(NamedTuple):
    """A cloud that has a stack; docs/NAME.md tells of it."""

    name: str
    """How commands and `infra.clouds` call it."""
    title: str
    """How texts call it."""
    packages: tuple[str, ...]
    """What its deployment imports, of the extra `infra`."""


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
