"""The relay of an embedded cluster's tunnels, in a thread of the server."""

from control_plane.access.tunnel_relay import TunnelRelay
from local_cluster.home import HomeFolder
from local_cluster.http_server import HOST
from relay.thread import RelayThread

SECRET_FILE = "relay.key"


def start_relay(home: HomeFolder) -> tuple[TunnelRelay, RelayThread]:
    """Start a relay on a free port of this machine.

    Return its place and secret for the API, and its thread. The secret is stored in the folder, and
    created on first use. Raises HomeInvalid for an invalid secret, and OSError.
    """
    secret = home.load_or_create_secret(SECRET_FILE).encode()
    thread = RelayThread(secret, HOST)
    thread.start()
    return TunnelRelay(f"http://{HOST}:{thread.port}", "", secret), thread
