"""The rows of the cluster as a whole, in the partition `cluster`, and the row of the relay."""

from control_plane.rows.row_type import RowType

CONFIGURATION = RowType(
    name="cluster configuration",
    key="cluster / configuration",
    meaning="The configuration of the cluster without the pools.",
    record="control_plane.config.pools:ClusterConfig",
    writers=("usecases.pool_settings",),
    readers=("queries.cluster_configuration",),
)
DEPLOYED_CONFIGURATION = RowType(
    name="deployed configuration",
    key="cluster / deployed-configuration",
    meaning="The deployed configuration that was applied last.",
    body="the SHA-256 of the configuration",
    writers=("lambdas.deployed_configuration",),
    readers=("lambdas.deployed_configuration",),
)
FAILED_SYNC = RowType(
    name="failed sync",
    key="cluster / failed-sync",
    meaning="The last sync of an agent that failed because of an error in the cluster.",
    fields={"failed_ms": "the time in epoch ms"},
    writers=("agents.failed_syncs",),
    readers=("agents.failed_syncs",),
)
INCARNATION = RowType(
    name="incarnation",
    key="cluster / incarnation",
    meaning="The name of the current incarnation, which each restore of a copy changes.",
    body="a UUID",
    writers=("restoration.incarnation",),
    readers=("restoration.incarnation",),
)
CLUSTER_ID = RowType(
    name="cluster id",
    key="cluster / id",
    meaning="The id of an embedded cluster.",
    body="a UUID",
    writers=("local_cluster.cluster_id",),
    readers=("local_cluster.cluster_id",),
)
MARK = RowType(
    name="state mark",
    key="cluster / mark",
    meaning="A number that grows every minute, by which an embedded server detects older copies.",
    body="a decimal number",
    writers=("local_cluster.state_mark",),
    readers=("local_cluster.state_mark",),
)
SERVER = RowType(
    name="server",
    key="servers / NAME",
    meaning="The data folder whose server has a name, of several servers with a common database.",
    fields={"home": "the id of the data folder", "host": "the name of the machine"},
    writers=("local_cluster.server_group",),
    readers=("local_cluster.server_group",),
)
DUTY = RowType(
    name="duty",
    key="duties / DUTY",
    meaning="The server that does a periodic task, of several servers with a common database.",
    fields={
        "holder": "the id of the server's data folder; empty after a release",
        "url": "the address of the server",
    },
    writers=("local_cluster.duty",),
    readers=("local_cluster.duty",),
)
SHARED_SECRET = RowType(
    name="shared secret",
    key="server-secrets / FILE",
    meaning="The content of a secret file that all servers with a common database share.",
    fields={"secret": "the content of the file"},
    writers=("local_cluster.server_group",),
    readers=("local_cluster.server_group",),
    secret_fields=("secret",),
)
OBJECTS_PLACE = RowType(
    name="place of the objects",
    key="cluster / objects",
    meaning="The folder or bucket of objects that all servers with a common database must use.",
    fields={
        "id": "the id in the file of the folder, or in the mark of the bucket",
        "folder": "the path or the address at the first server",
    },
    writers=("local_cluster.server_group", "local_cluster.restore"),
    readers=("local_cluster.server_group",),
)
# The relay may write this partition alone, so the partition has no other row.
RELAY = RowType(
    name="relay",
    key="relays / task",
    meaning="The task that runs the relay of tunnels, on clusters that start the relay on demand.",
    record="control_plane.access.relay_record:RelayRecord",
    writers=("usecases.relay_demand", "usecases.relay_row"),
    readers=("usecases.relay_demand",),
    secret_fields=("secret",),
)

ROW_TYPES = (
    CONFIGURATION,
    DEPLOYED_CONFIGURATION,
    FAILED_SYNC,
    INCARNATION,
    CLUSTER_ID,
    MARK,
    SERVER,
    DUTY,
    SHARED_SECRET,
    OBJECTS_PLACE,
    RELAY,
)
