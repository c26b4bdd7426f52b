"""The package of the SSH server: of the allocation's Python, or installed into the home."""

from __future__ import annotations

from detcloud.shared.trial_packages import TrialPackage

ASYNCSSH = TrialPackage("asyncssh", (2, 18), 3, "the SSH server")
INSTALLING = f"installing {ASYNCSSH.name} for the first SSH connection to this trial ..."
"""The sentence for the user before the installation."""
