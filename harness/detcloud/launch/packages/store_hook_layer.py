"""Stores the packages that startup-hook.sh installed, for the experiment's later runs here.

`python -m detcloud.launch.packages.store_hook_layer OVERLAY VERSION CACHE KEY` runs between the
hook and the trial. A failure is printed in the log, and the trial starts nevertheless.
"""

from __future__ import annotations

import sys
from pathlib import Path

from detcloud.launch.packages.layers import store_layer


def main(arguments: list[str]) -> int:
    """Store the packages of the overlay as a layer, print a failure, and return 0.

    `arguments` are the folder of the overlay, the version of Python, the cache of layers and the
    layer's key. The overlay is the trial's virtual environment. Do nothing if the overlay has no
    packages or the layer exists.
    """
    overlay, version, cache, key = arguments
    try:
        store_layer(Path(overlay), version, Path(cache), key)
    except OSError as error:
        print(f"[detcloud] packages of startup-hook.sh are not kept for later runs: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
