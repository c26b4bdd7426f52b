"""The entry point `python -m bench`, which puts the checkout on the path of all processes."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    folders = [str(ROOT), str(ROOT / "harness")]
    sys.path[:0] = folders
    known = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (*folders, known)))
    from bench.cli import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
