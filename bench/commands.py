"""Wall time of the shortest commands, compared with an interpreter that does nothing."""

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from bench.figures import Row, Scale, at_most, progress

TARGETS_MS = {"--version": 150, "--help": 200}


def commands(scale: Scale) -> Iterator[Row]:
    """`detcloud --version` and `--help`: the median, the runs of all three taking turns."""
    detcloud = _detcloud()
    lines = {option: [*detcloud, option] for option in TARGETS_MS}
    lines["nothing"] = [sys.executable, "-c", "pass"]
    taken: dict[str, list[float]] = {name: [] for name in lines}
    with progress(f"commands, {scale.command_runs} runs"):
        for _ in range(scale.command_runs):
            for name, line in lines.items():
                taken[name].append(_milliseconds(line))
    nothing = f"python -c pass: {median(taken['nothing']):.0f} ms"
    for option, target in TARGETS_MS.items():
        yield at_most(f"detcloud {option}", median(taken[option]), target, "ms", beside=nothing)


def _detcloud() -> list[str]:
    """Return the command line of the installed `detcloud`, or of the module."""
    script = shutil.which("detcloud", path=str(Path(sys.executable).parent))
    return [script] if script else [sys.executable, "-m", "detcloud.cli.main"]


def _milliseconds(line: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run(line, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    return (time.perf_counter() - started) * 1000
