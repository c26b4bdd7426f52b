"""A process that used Gloo ends with the exit code of its program, not with an abort."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from detcloud.shared.clean_exit import AT_START
from detcloud.shared.gloo_threads import await_gloo_threads
from tests.patience import PROCESS_SECONDS_MAX

# Gloo's thread waits for the interpreter lock, which the program keeps until the end. Without the
# wait under test, this program always aborts.
ENDS_AT_ONCE = """
import sys, time
import torch
from torch import distributed
distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
value = torch.ones(1)
sys.setswitchinterval(0.3)
distributed.all_reduce(value, async_op=True)
end = time.monotonic() + 0.15
while time.monotonic() < end:
    pass
sys.exit(int(sys.argv[1]))
"""
OWN_CUSTOMIZATION = "import sys\nsys.own = __file__\n"


def run(folder: Path, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a program in `folder`; PYTHONPATH has detcloud's sitecustomize first, then `folder`."""
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((AT_START, str(folder)))},
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
        check=False,
    )


def test_exit_code_survives_a_running_gloo_thread(
    tmp_path: Path,
) -> None:
    done = run(tmp_path, ENDS_AT_ONCE, "3")
    assert (done.returncode, done.stderr) == (3, "")


def test_foreign_sitecustomize_is_run(tmp_path: Path) -> None:
    own = tmp_path / "sitecustomize.py"
    own.write_text(OWN_CUSTOMIZATION)
    program = "import sys, sitecustomize; print(sys.own, sitecustomize.__file__)"
    assert run(tmp_path, program).stdout.split() == [str(own), str(own)]
    own.write_text("raise OSError('no license')")
    done = run(tmp_path, "print('ran')")
    assert "no license" in done.stderr
    assert done.stdout == "ran\n"


@pytest.mark.parametrize(
    ("checks", "waits"),
    [
        # No Gloo thread exists.
        ([{}], 0),
        # Unchanged between the first two checks, for instance because the peer is dead.
        ([{"7": "State:\tS 4"}, {"7": "State:\tS 4"}], 1),
        # The thread ran between the checks; the thread is running; a second thread has ended.
        ([{"7": "State:\tS 4"}, {"7": "State:\tS 5"}, {"7": "State:\tS 5"}], 2),
        (
            [
                {"7": "State:\tR 4"},
                {"7": "State:\tR 4"},
                {"7": "State:\tS 5"},
                {"7": "State:\tS 5"},
            ],
            3,
        ),
        ([{"7": "S", "8": "S"}, {"7": "S"}, {"7": "S"}], 2),
    ],
)
def test_gloo_threads_are_awaited_until_unchanged_between_two_checks(
    checks: list[dict[str, str]], waits: int
) -> None:
    remaining: Iterator[dict[str, str]] = iter(checks)
    sleeps: list[float] = []
    await_gloo_threads(lambda: next(remaining), sleeps.append)
    assert len(sleeps) == waits
    assert list(remaining) == []
    # A thread that waits for the interpreter lock changes state within each sleep.
    assert all(seconds > sys.getswitchinterval() for seconds in sleeps)
