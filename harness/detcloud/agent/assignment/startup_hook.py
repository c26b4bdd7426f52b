"""The model code's startup-hook.sh, sourced by the shell that then becomes the trial.

So its exports, its limits and the processes it leaves in the background last as long as the trial.
A command of the hook that fails ends the hook and the trial with it.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

HOOK_FILE = "startup-hook.sh"
# A file in the runtime's directory, made when the hook has ended: what runs then is the trial. The
# supervisor, which imports nothing of this package, repeats the name.
PASSED_FILE = "hook-passed"


def hook_command(code: Path, directory: Path, trial: Sequence[str]) -> list[str]:
    """The command that runs the hook in `code` and then, in its place, the trial.

    After a hook that ends with `exit 0` nothing follows: then the caller starts the trial.
    """
    quoted = shlex.quote(str(code)), shlex.quote(str(directory / PASSED_FILE)), shlex.join(trial)
    script = "set -e\n. ./{}\nset +exu\ncd {} && : > {} && exec {}".format(HOOK_FILE, *quoted)
    # An image may have no bash.
    return ["/bin/sh", "-c", 'exec "$(command -v bash || echo /bin/sh)" -c "$0"', script]
