"""The launchers that an entrypoint may name, as `python3 -m detcloud.launch.NAME`."""

from __future__ import annotations

import re
from collections.abc import Sequence

LAUNCHERS = ("torch_distributed", "horovod", "deepspeed", "tensorflow", "autohorovod", "wrap_rank")
_LAUNCHER = re.compile(r"(?:^|\s)-m\s*(?:detcloud|determined)\.launch\.([A-Za-z0-9_.]+)")


def unknown_launcher(entrypoint: str | Sequence[str]) -> str | None:
    """The first launcher of ours that the entrypoint names and that does not exist, or None."""
    line = entrypoint if isinstance(entrypoint, str) else " ".join(entrypoint)
    names = [match[1] for match in _LAUNCHER.finditer(line)]
    return next((name for name in names if name not in LAUNCHERS), None)
