"""Start-up times of Python programs, each in a fresh process, by turns."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.figures import progress


class Program(NamedTuple):
    """Lines of Python, and the folder with the packages of the program."""

    lines: str
    code: Path


def median_starts(
    programs: Mapping[str, Program],
    environment: Mapping[str, str],
    runs: int,
    options: Sequence[str] = ("-P",),
) -> dict[str, float]:
    """Return the median milliseconds of each program over `runs` rounds. An additional first round
    is not counted.

    `options`: interpreter options. `environment`: additional variables.
    """
    taken: dict[str, list[float]] = {name: [] for name in programs}
    with progress(f"cold starts, {runs} of each"):
        # The first of each warms the disk.
        for n in range(runs + 1):
            for name, program in programs.items():
                milliseconds = _milliseconds(program, environment, options)
                if n:
                    taken[name].append(milliseconds)
    return {name: median(found) for name, found in taken.items()}


def _milliseconds(
    program: Program, environment: Mapping[str, str], options: Sequence[str]
) -> float:
    """Return the milliseconds from the start of the process to the end of the program's lines."""
    variables = {**os.environ, **environment, "PYTHONPATH": str(program.code)}
    line = [sys.executable, *options, "-c", f"{program.lines}\nimport os; os._exit(0)"]
    started = time.perf_counter()
    subprocess.run(line, check=True, env=variables, cwd=program.code, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - started) * 1000
