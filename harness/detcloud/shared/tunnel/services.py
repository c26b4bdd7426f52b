"""The services of an allocation, which a tunnel opens by name instead of by port."""

from __future__ import annotations

LOCATION = "location"
"""The file with address and secret of a notebook or shell."""
SSH = "ssh"
"""A new SSH server in the allocation."""
DEBUGGER = "debugger"
"""The debugger of a trial that was created with `--debug`."""
SERVICES = (LOCATION, SSH, DEBUGGER)
LOCATION_BYTES_MAX = 4_096
"""The most bytes of the file of `location`."""
