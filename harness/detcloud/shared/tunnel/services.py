"""The services of an allocation, which a tunnel opens by name instead of by port."""

from __future__ import annotations

LOCATION = "location"
"""The file with address and secret of a notebook or shell."""
SSH = "ssh"
"""A new SSH server in the allocation."""
DEBUGGER = "debugger"
"""The debugger of a trial that was created with `--debug`."""
FOLDER = "folder"
"""The files below the trial's working directory, by frames (`detcloud.shared.folder_sync`)."""
SERVICES = (LOCATION, SSH, DEBUGGER, FOLDER)
LOCATION_BYTES_MAX = 4_096
"""The most bytes of the file of `location`."""
