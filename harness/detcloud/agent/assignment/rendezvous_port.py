"""The replacement of a trial's rendezvous port if another program already uses the port."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from detcloud.launch.gang import CHANNEL_PORT_OFFSET
from detcloud.shared.ports import find_free_port, is_port_free

if TYPE_CHECKING:
    from detcloud.agent.allocation.directory import AllocationDirectory


class PortTaken(Exception):
    """Another program of this machine uses a port that the trial's other nodes already expect."""


def replace_taken_port(spec: dict[str, Any], directory: AllocationDirectory) -> None:
    """Replace a taken `rendezvous_port` in the spec of a trial on a single machine.

    Change `spec` in place, and write a notice to the trial's log. Do nothing if the port is free,
    if the spec has no port, or on machines other than the first. On the first of several machines,
    raise PortTaken if the port or the port of the trial's channel is taken. Raise OSError if the
    notice cannot be written.
    """
    port = spec.get("rendezvous_port")
    if not isinstance(port, int) or int(spec.get("node_rank", 0)) != 0:
        return
    is_alone = int(spec.get("nodes", 1)) == 1
    needed = (port,) if is_alone else (port, port - CHANNEL_PORT_OFFSET)
    taken = [one for one in needed if not is_port_free(one)]
    if not taken:
        return
    if not is_alone:
        raise PortTaken(
            f"another program of this machine has port {taken[0]}, at which the trial's nodes "
            "would meet; the next run uses another port"
        )
    spec["rendezvous_port"] = find_free_port()
    directory.write_notices(
        [
            f"[detcloud] another program has port {port}: the trial's processes meet at port "
            f"{spec['rendezvous_port']}"
        ]
    )
