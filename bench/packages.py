"""The time that installed packages add to the start of a trial, at first and with a cache."""

import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from bench.figures import Row, Scale, at_most, progress, row_without_target
from bench.starts import Machine, look
from tests.wheels import wheel

ADDED_MS_MAX = 1000
NAME = "detcloud_bench_package"
WHEEL, WHEEL_BYTES = wheel(NAME)
FIRST_LINE = "import time; print('at', time.monotonic())"
HOOK = f"pip install -q --no-index ./{WHEEL}\n"
DECLARED = {"installer": "pip", "packages": ["--no-index", f"./{WHEEL}"], "file": ""}


def packages(scale: Scale) -> Iterator[Row]:
    """Yield medians of starts by turns: without packages, with declared packages, and with a
    startup hook.
    """
    with TemporaryDirectory(prefix="detcloud-bench-") as folder:
        code = {WHEEL: WHEEL_BYTES}
        plain = Machine(Path(folder) / "plain", None, code)
        hook = Machine(Path(folder) / "hook", None, {**code, "startup-hook.sh": HOOK.encode()})
        with progress("the first installation"):
            declared_first = _first_line_ms(plain, "2.0", packages=DECLARED)
            hook_first = _first_line_ms(hook, "3.0")
        without, declared, hooked = [], [], []
        with progress(f"starts with cached packages, {scale.start_runs} runs of each"):
            for number in range(scale.start_runs):
                without.append(_first_line_ms(plain, f"1.{number}"))
                declared.append(_first_line_ms(plain, f"2.{number + 1}", packages=DECLARED))
                hooked.append(_first_line_ms(hook, f"3.{number + 1}"))
    base = median(without)
    what = "a restart with cached packages, beyond one without"
    first = f"without packages {base:.0f} ms; first installation {declared_first:.0f} ms"
    added = median(declared) - base
    yield at_most(f"{what}: declared", added, ADDED_MS_MAX, "ms", beside=first)
    first = f"the hook runs again; first installation {hook_first:.0f} ms"
    yield row_without_target(f"{what}: of a hook", median(hooked) - base, "ms", beside=first)


def _first_line_ms(machine: Machine, name: str, **spec: Any) -> float:
    """Return the milliseconds from the request of a trial to the first line of the program."""
    requested = time.monotonic()
    entrypoint = ["python3", "-c", f"import {NAME}; {FIRST_LINE}" if spec else FIRST_LINE]
    allocation = machine.begin(name, entrypoint=entrypoint, **spec)
    look(allocation, lambda: not allocation.is_active)
    log = allocation.directory.log.read_text()
    moments = [line for line in log.splitlines() if line.startswith("at ")]
    if not moments:
        raise RuntimeError(f"the trial did not run: {log}")
    return (float(moments[0].split()[1]) - requested) * 1000
