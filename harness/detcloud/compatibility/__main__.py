"""Runs a script that was written for Determined outside of a trial.

`python -m detcloud.compatibility SCRIPT [ARGUMENTS...]` runs like `python SCRIPT [ARGUMENTS...]`,
but `import determined` imports detcloud's package, in the script and in the processes that the
script starts.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from detcloud.compatibility.path import offer_determined

USAGE = "usage: python -m detcloud.compatibility SCRIPT [ARGUMENTS...]"


def main(words: list[str]) -> int:
    """Run the script in this process, and return 0. Errors of the script are raised.

    `words` are the script's path and arguments, which become sys.argv. The script's folder and the
    package `determined` are put first on sys.path. Print the usage and return 2 without a script,
    or 0 for `--help`.
    """
    if not words or words[0].startswith("-"):
        is_help = words[:1] in (["-h"], ["--help"])
        print(USAGE, file=sys.stdout if is_help else sys.stderr)
        return 0 if is_help else 2
    script = Path(words[0])
    if not script.is_file():
        print(f"detcloud: {script} is not a file; expected a Python script", file=sys.stderr)
        return 2
    sys.argv[:] = words
    # The interpreter has put the working directory here because of -m.
    sys.path[0] = str(script.resolve().parent)
    offer_determined({})
    runpy.run_path(str(script), run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
