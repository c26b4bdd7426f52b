"""Application of the deployed cluster configuration.

A deployment stores the configuration as an object, and its digest as a setting of the functions.
The first tick with a new digest applies the configuration.
"""

import hashlib

from control_plane.rows import cluster_rows
from control_plane.state.table import Expect, Key, Put
from lambdas.builder import Cluster

# The row with the digest of the deployed configuration that was applied last.
APPLIED = Key(*cluster_rows.DEPLOYED_CONFIGURATION.only_key)
OBJECT = "config/cluster.yaml"
# The user that records of the changes name.
USER = "administrator"


def apply_deployed_configuration(cluster: Cluster) -> None:
    """Apply the deployed cluster configuration, unless the last tick already applied it.

    Change the pools and the shared settings, then store the digest of the configuration in the
    state table. Do nothing if the state table already has this digest. Do nothing while the stored
    object does not have the deployed digest.

    Raises:
        ConfigInvalid: the configuration is invalid.
        RequestError: the configuration cannot be applied, for example because a pool to remove is
            in use.
        ObjectNotFound: the deployed object does not exist.
        TableError: the state table failed, or another process stored a digest at the same time.
        An error of the object store's SDK: the object cannot be read.
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
        # A deployment is in progress. Object and functions change at different times.
        return
    config = check_cluster(content.decode())
    difference = check_configuration(cluster.services, config)
    apply_configuration(cluster.services, difference, USER, no_extra_writes)
    revision = row.revision if row else 0
    table.commit((Put(APPLIED, revision + 1, deployed.encode(), revision or Expect.ABSENT),))
