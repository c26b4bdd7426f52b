"""Runs a script that was written for Determined outside of a trial.

`python -m detcloud.compatibility SCRIPT [ARGUMENTS...]` is `python SCRIPT [ARGUMENTS...]` with
`import determined` being detcloud's, in the script and in the processes it starts.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from detcloud.compatibility.path import offer_determined

USAGE = "usage: python -m detcloud.compatibility SCRIPT [ARGUMENTS...]"


def main(words: list[str]) -> int:
    """Run the script in this process; 2 where there is none."""
    if not words or words[0].startswith("-"):
        is_help = words[:1] in (["-h"], ["--help"])
        print(USAGE, file=sys.stdout if is_help else sys.stderr)
        return 0 if is_help else 2
    script = Path(words[0])
    if not script.is_file():
        print(f"detcloud: {script} is not a file; expected a Python script", file=sys.stderr)
        return 2
    sys.argv[:] = words
    # As the interpreter does, which has put the working directory there for -m.
    sys.path[0] = str(script.resolve().parent)
    offer_determined({})
    runpy.run_path(str(script), run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
