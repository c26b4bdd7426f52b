"""The relay of an embedded cluster's tunnels, which the cluster's server is too."""

from control_plane.access.tunnel_relay import TunnelRelay
from local_cluster.home import HomeFolder

SECRET_FILE = "relay.key"


def load_relay(home: HomeFolder) -> TunnelRelay:
    """Return the relay at the address of the API.

    The relay's secret is stored in the folder, and created on first use. Raises HomeInvalid for an
    invalid secret, and OSError.
    """
    return TunnelRelay("", "", home.load_or_create_secret(SECRET_FILE).encode())
