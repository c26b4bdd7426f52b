"""Stores the packages that startup-hook.sh installed, for later runs of the experiment on this
machine.

`python -m detcloud.launch.packages.store_hook_layer OVERLAY VERSION CACHE KEY` runs between the
hook and the trial. A failure is printed in the log, and the trial starts nevertheless.
"""

from __future__ import annotations

import sys
from pathlib import Path

from detcloud.launch.packages.layers import store_layer


def main(arguments: list[str]) -> int:
    """Store the layer, print a failure, and return 0."""
    overlay, version, cache, key = arguments
    try:
        store_layer(Path(overlay), version, Path(cache), key)
    except OSError as error:
        print(f"[detcloud] packages of startup-hook.sh are not kept for later runs: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
