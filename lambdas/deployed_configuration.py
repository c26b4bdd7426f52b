"""The cluster configuration that was deployed, an object beside the code of the functions, is put
in force by the first tick that finds another one in force.
"""

import hashlib

from control_plane.state.table import Expect, Key, Put
from lambdas.builder import Cluster

# The digest of the cluster configuration that was deployed and is in force.
APPLIED = Key("cluster", "deployed-configuration")
OBJECT = "config/cluster.yaml"
# By whom its changes are made, as those of a person.
USER = "administrator"


def apply_deployed_configuration(cluster: Cluster) -> None:
    """Put the deployed configuration in force, if it is another than the one in force.

    Raises ConfigInvalid, RequestError: it has problems, or cannot be applied.
    """
    table, deployed = cluster.engine.table, cluster.adapters.configuration_sha256
    row = table.get(APPLIED)
    if row is not None and row.body.decode() == deployed:
        return
    from control_plane.config.pools import check_cluster
    from control_plane.objects.store import ObjectKey
    from control_plane.usecases.cluster_configuration import (
        apply_configuration,
        check_configuration,
    )
    from control_plane.usecases.idempotency import no_extra_writes

    content = b"".join(cluster.stores.objects.get(ObjectKey(OBJECT)))
    if hashlib.sha256(content).hexdigest() != deployed:
        # The object and the functions change one after the other.
        return
    config = check_cluster(content.decode())
    difference = check_configuration(cluster.services, config)
    apply_configuration(cluster.services, difference, USER, no_extra_writes)
    revision = row.revision if row else 0
    table.commit((Put(APPLIED, revision + 1, deployed.encode(), revision or Expect.ABSENT),))
