"""The model code's startup-hook.sh, sourced by the shell that then becomes the trial.

So what it exports, its limits and the processes it leaves in the background last as long as the
trial. A command of it that fails ends it and the trial with it.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

HOOK = "startup-hook.sh"
# In the runtime's directory, once the hook is through: what runs then is the trial. The supervisor,
# which imports nothing of ours, knows it by the same name.
PASSED = "hook-passed"


def hook_command(code: Path, directory: Path, trial: Sequence[str]) -> list[str]:
    """What runs the hook in `code` and then, in its place, the trial.

    Where the hook leaves with `exit 0`, nothing follows: the trial is the caller's to start then.
    """
    quoted = shlex.quote(str(code)), shlex.quote(str(directory / PASSED)), shlex.join(trial)
    script = "set -e\n. ./{}\nset +exu\ncd {} && : > {} && exec {}".format(HOOK, *quoted)
    # An image may have no bash.
    return ["/bin/sh", "-c", 'exec "$(command -v bash || echo /bin/sh)" -c "$0"', script]
