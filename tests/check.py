"""`python -m tests.check [AREA]`: the fast checks, of one area of the tree or of all of it.

An area is a folder of `tests/unit`; the product's folders of that name are its code. Tests that
start emulators, containers or whole clusters are not among them: `make test` runs those.
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
    "infra",
    "images",
    "harness/detcloud",
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
# Errors in what is imported are those of another area.
SILENT = ("--follow-imports=silent",)


class Check(NamedTuple):
    """One command with the name it is reported under."""

    name: str
    command: tuple[str, ...]


class Outcome(NamedTuple):
    """How a check ended, after how many seconds, and what it printed."""

    check: Check
    passed: bool
    seconds: float
    output: str


def main(words: Sequence[str] | None = None) -> int:
    """Run the checks beside each other; 0 when all passed, 1 when one failed, 2: no such area."""
    parser = argparse.ArgumentParser(prog="python -m tests.check", description=__doc__)
    parser.add_argument("area", nargs="?", default="", help="a folder of tests/unit")
    area = parser.parse_args(words).area
    if area and area not in areas():
        print(f"there is no area {area!r}; there are {', '.join(areas())}", file=sys.stderr)
        return 2
    checks = area_checks(area) if area else all_checks()
    with ThreadPoolExecutor(len(checks)) as pool:
        outcomes = list(pool.map(run, checks))
    for outcome in outcomes:
        print(f"--- {outcome.check.name}: {'passed' if outcome.passed else 'FAILED'}", end=" ")
        print(f"in {outcome.seconds:.0f} s\n{outcome.output.rstrip()}")
    return 0 if all(outcome.passed for outcome in outcomes) else 1


def areas() -> list[str]:
    """The names that `make check AREA=` takes."""
    return sorted(path.name for path in UNIT.iterdir() if any(path.glob("test_*.py")))


def code_folders(area: str) -> list[str]:
    """The folders of the product that an area is made of, relative to the repository."""
    tops = [ROOT / top for top in PRODUCT]
    found = [top for top in tops if top.name == area]
    found += [path for top in tops for path in sorted(top.rglob(area)) if path.is_dir()]
    return [path.relative_to(ROOT).as_posix() for path in found]


def area_checks(area: str) -> list[Check]:
    """Lint, types and tests of one area."""
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
    """Lint and types of the whole tree, and the tests that start no emulator."""
    types: tuple[str, ...] = ("mypy",)
    if find_spec("pulumi") is None:
        print(f"types of {', '.join(DEPLOYED)} are left out: `make setup` installs what they need")
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
    """The paths below which there is Python: mypy takes a folder without any as a mistake."""
    return [path for path in paths if any((ROOT / path).rglob("*.py"))]


def run(check: Check) -> Outcome:
    """Run one check with the programs of this Python's environment."""
    program = Path(sys.executable).with_name(check.command[0])
    started = time.monotonic()
    done = subprocess.run(
        [program, *check.command[1:]], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    output = done.stdout.decode(errors="replace")
    return Outcome(check, done.returncode == 0, time.monotonic() - started, output)


if __name__ == "__main__":
    sys.exit(main())
