"""The relay of an embedded cluster's tunnels, which the cluster's server is too."""

from dataclasses import replace

from control_plane.access.tunnel_relay import TunnelRelay
from control_plane.state.table import StateTable
from local_cluster.duty import TICK, read_holder_url
from local_cluster.home import HomeFolder

SECRET_FILE = "relay.key"


class GroupRelay:
    """The relay of several servers with a common state: the server on duty of the tick.

    Both ends of a tunnel must call the relay of the same server.

    Args:
        table: the state table.
        own: the relay of this server.
        url: the address of this server.
    """

    def __init__(self, table: StateTable, own: TunnelRelay, url: str) -> None:
        self._table = table
        self._own = own
        self._url = url

    def find_relay(self) -> TunnelRelay:
        """Return the relay of the server on duty. Raises TableError."""
        url = read_holder_url(self._table, TICK)
        return self._own if url in ("", self._url) else replace(self._own, url=url)


def load_relay(home: HomeFolder) -> TunnelRelay:
    """Return the relay at the address of the API.

    The relay's secret is stored in the folder, and created on first use. Raises HomeInvalid for an
    invalid secret, and OSError.
    """
    return TunnelRelay("", "", home.load_or_create_secret(SECRET_FILE).encode())
