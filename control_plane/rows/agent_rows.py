"""The rows of agents: pools, sessions, leases, tokens and identities."""

from control_plane.rows.row_type import RowType

AGENT = RowType(
    name="agent",
    key="agents / AGENT",
    meaning="The pool of an agent.",
    body="the name of the pool",
    writers=("actors.agent.actor",),
    readers=(
        "queries.agent",
        "monitoring.cluster_metrics",
    ),
)
SESSION = RowType(
    name="session",
    key="sessions / AGENT",
    meaning="The offsets up to which an agent's reports and logs were accepted.",
    record="control_plane.agents.sessions:Session",
    writers=("agents.sessions", "actors.agent.actor"),
    readers=("agents.sessions", "agents.sync_acceptance"),
    is_mutable=True,
)
LEASE = RowType(
    name="lease",
    key="leases#POOL / AGENT",
    meaning="The lease of an agent, which calls of the agent renew.",
    record="control_plane.agents.leases:Lease",
    writers=("agents.leases", "actors.agent.actor"),
    readers=("agents.leases", "agents.sync_acceptance", "provisioner.engine_pools"),
    is_mutable=True,
)
LOSS_DETECTION = RowType(
    name="loss detection",
    # "~" sorts after the names of agents.
    key="leases#POOL / ~brake",
    meaning="The state of a pool's loss detection.",
    record="control_plane.agents.leases:LossDetection",
    writers=("agents.leases",),
    readers=("agents.leases",),
    is_mutable=True,
)
TOKEN_HOLDER = RowType(
    name="token holder",
    key="token-holders / AGENT",
    meaning="The only valid token of an agent.",
    fields={"epoch": "the epoch of the agent's session", "digest": "the SHA-256 of the token"},
    writers=("access.tokens", "actors.agent.actor"),
    readers=("access.tokens", "actors.agent.actor"),
)
CREDENTIAL = RowType(
    name="agent credential",
    key="agent-credentials / AGENT",
    meaning="The installation that owns the agent's name, and the digest of its own token. A lost "
    "agent keeps the row.",
    record="control_plane.access.agent_credentials:CredentialRecord",
    writers=("access.agent_credentials",),
    readers=("access.agent_credentials",),
    is_mutable=True,
)
TUNNEL = RowType(
    name="tunnel",
    key="tunnels / TUNNEL",
    meaning="A user's tunnel to ports of an allocation. The agent's head lists the open tunnels.",
    record="control_plane.usecases.tunnels:TunnelRecord",
    writers=("usecases.tunnels",),
    readers=("usecases.tunnels",),
    expiry="24 h after the last ticket of the user's end",
    is_mutable=True,
    secret_fields=("token_digest",),
)
IDENTITY = RowType(
    name="identity",
    key="identities / INSTANCE",
    meaning="The digest of the join token that an instance proved. Only one digest is accepted.",
    fields={
        "token_sha256": "the SHA-256 of the join token",
        "time_ms": "the time of the proof, in epoch ms",
    },
    writers=("agents.identity",),
    readers=("agents.identity",),
)

ROW_TYPES = (AGENT, SESSION, LEASE, LOSS_DETECTION, TOKEN_HOLDER, CREDENTIAL, TUNNEL, IDENTITY)
