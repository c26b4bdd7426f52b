"""The check of pools on AWS that belong to a cluster in another cloud."""

from dataclasses import replace

from control_plane.config.pools import ClusterConfig
from infra.aws.account_checks import check_disks
from infra.aws.account_facts import Clients
from infra.aws.account_reader import read_pools
from infra.aws.launch_checks import check_launches
from infra.aws.pool_checks import aws_pools
from infra.aws.purchase_checks import check_pools
from infra.aws.settings import Settings
from infra.findings import Finding


def find_pool_findings(
    settings: Settings, cluster: ClusterConfig, clients: Clients
) -> list[Finding]:
    """Return findings about types, quotas, images, disks and launches of pools on AWS.

    The facts are read from AWS. A failed read raises nothing, and becomes a warning. Return []
    without pools on AWS. Each finding's subject names a pool or the account.
    """
    if not any(aws_pools(cluster)):
        return []
    facts = read_pools(settings, cluster, clients)
    remedy = (
        f"make AWS's own key the default again, `aws ec2 reset-ebs-default-kms-key-id --region "
        f"{settings.region}`, or use another account"
    )
    found = [
        *check_pools(settings, cluster, facts),
        *check_disks(facts, "", remedy),
        *check_launches(settings, cluster, facts),
    ]
    # Without the account, a subject such as `disks` could belong to either cloud.
    return [
        finding
        if finding.subject.startswith("pool ")
        else replace(finding, subject=f"{finding.subject} in {settings.account}")
        for finding in found
    ]
