"""`python -m tests.check [AREA]`: the fast checks of an area or of the whole tree.

An area is a folder of `tests/unit`. The code of an area is the product's folders of that name. The
checks skip tests that start emulators, containers or whole clusters: `make test` runs these tests.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from lambdas.clouds import CLOUDS

ROOT = Path(__file__).resolve().parents[1]
UNIT = ROOT / "tests" / "unit"
PRODUCT = (
    "control_plane",
    "provisioner",
    "lambdas",
    "simulator",
    "local_cluster",
    "relay",
    "infra",
    "images",
    "harness/detcloud",
    "docs_site",
)
# Folders whose types need packages that `make setup-core` leaves out.
DEPLOYED = (
    "infra",
    *(f"lambdas/{cloud}" for cloud in CLOUDS),
    "bench",
    "tests/emulators",
    "tests/integration",
    "tests/unit/infra",
)
FAST_TESTS = ("tests/unit", "tests/journals")
# Errors in imported modules belong to other areas.
SILENT = ("--follow-imports=silent",)


class Check(NamedTuple):
    """A command and the name of the check in the report."""

    name: str
    command: tuple[str, ...]


class Outcome(NamedTuple):
    """The result of a check: success, duration in seconds, and printed output."""

    check: Check
    passed: bool
    seconds: float
    output: str


def main(words: Sequence[str] | None = None) -> int:
    """Run the checks of an area, or all checks, in parallel and print their outputs.

    Return 0 if all checks passed, 1 if a check failed, and 2 for an unknown area.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.check", description=__doc__)
    parser.add_argument("area", nargs="?", default="", help="a folder of tests/unit")
    area = parser.parse_args(words).area
    if area and area not in areas():
        print(f"unknown area {area!r}; areas are {', '.join(areas())}", file=sys.stderr)
        return 2
    checks = area_checks(area) if area else all_checks()
    with ThreadPoolExecutor(len(checks)) as pool:
        outcomes = list(pool.map(run, checks))
    for outcome in outcomes:
        print(f"--- {outcome.check.name}: {'passed' if outcome.passed else 'FAILED'}", end=" ")
        print(f"in {outcome.seconds:.0f} s\n{outcome.output.rstrip()}")
    return 0 if all(outcome.passed for outcome in outcomes) else 1


def areas() -> list[str]:
    """Return the sorted names of the areas, which `make check AREA=` accepts."""
    return sorted(path.name for path in UNIT.iterdir() if any(path.glob("test_*.py")))


def code_folders(area: str) -> list[str]:
    """Return the product's folders of an area, relative to the repository."""
    tops = [ROOT / top for top in PRODUCT]
    folders = [top for top in tops if top.name == area]
    folders += [path for top in tops for path in sorted(top.rglob(area)) if path.is_dir()]
    return [path.relative_to(ROOT).as_posix() for path in folders]


def area_checks(area: str) -> list[Check]:
    """Return the checks of an area: lint, types and tests."""
    paths = [*code_folders(area), f"tests/unit/{area}"]
    properties = sorted((ROOT / "tests" / "properties").glob(f"test_{area}*.py"))
    tests = [f"tests/unit/{area}", *(path.relative_to(ROOT).as_posix() for path in properties)]
    return [
        Check("ruff check", ("ruff", "check", *paths)),
        Check("ruff format", ("ruff", "format", "--check", *paths)),
        Check("mypy", ("mypy", *SILENT, "--cache-dir=.mypy_cache/areas", *python_paths(paths))),
        Check("pytest", ("pytest", "-q", "-n", "logical", *tests)),
    ]


def all_checks() -> list[Check]:
    """Return the checks of the whole tree: lint, types, and tests without an emulator.

    Without Pulumi, print a note and leave out the types of DEPLOYED folders.
    """
    types: tuple[str, ...] = ("mypy",)
    if find_spec("pulumi") is None:
        print(f"types of {', '.join(DEPLOYED)} are left out: `make setup` installs their packages")
        pattern = "|".join(f"^{folder}/" for folder in DEPLOYED)
        types = (
            "mypy",
            "--exclude",
            pattern,
            "--follow-imports=silent",
            "--cache-dir=.mypy_cache/core",
        )
    return [
        Check("ruff check", ("ruff", "check", ".")),
        Check("ruff format", ("ruff", "format", "--check", ".")),
        Check("mypy", types),
        Check("import contracts", ("lint-imports",)),
        Check("pytest", ("pytest", "-q", "-n", "logical", *FAST_TESTS)),
    ]


def python_paths(paths: Sequence[str]) -> list[str]:
    """Return the paths with Python files, because mypy rejects folders without Python files."""
    return [path for path in paths if any((ROOT / path).rglob("*.py"))]


def run(check: Check) -> Outcome:
    """Run a check with the programs of this Python's environment; return the outcome."""
    program = Path(sys.executable).with_name(check.command[0])
    started = time.monotonic()
    done = subprocess.run(
        [program, *check.command[1:]], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output = done.stdout.decode(errors="replace")
    return Outcome(check, done.returncode == 0, time.monotonic() - started, output)


if __name__ == "__main__":
    sys.exit(main())
