"""A process that exchanged tensors by Gloo ends as its code ends, not with an abort."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from detcloud.shared.clean_exit import AT_START
from detcloud.shared.gloo_threads import await_gloo_threads
from tests.patience import PROCESS_SECONDS_MAX

# The thread of Gloo waits for the interpreter, which the code keeps until it ends: without the wait
# for it this aborts every time.
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
    """Run a program with the folder of ours first on the path, then the given one."""
    return subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((AT_START, str(folder)))},
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
        check=False,
    )


def test_a_process_that_ends_with_its_last_exchange_ends_with_its_own_code(
    tmp_path: Path,
) -> None:
    done = run(tmp_path, ENDS_AT_ONCE, "3")
    assert (done.returncode, done.stderr) == (3, "")


def test_the_sitecustomize_of_others_runs_in_the_place_of_ours(tmp_path: Path) -> None:
    own = tmp_path / "sitecustomize.py"
    own.write_text(OWN_CUSTOMIZATION)
    program = "import sys, sitecustomize; print(sys.own, sitecustomize.__file__)"
    assert run(tmp_path, program).stdout.split() == [str(own), str(own)]
    own.write_text("raise OSError('no license')")
    done = run(tmp_path, "print('ran')")
    assert "no license" in done.stderr
    assert done.stdout == "ran\n"


@pytest.mark.parametrize(
    ("looks", "waits"),
    [
        # There is none.
        ([{}], 0),
        # Still at once, for instance because the peer is dead.
        ([{"7": "State:\tS 4"}, {"7": "State:\tS 4"}], 1),
        # It ran meanwhile; it runs; a second one has ended.
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
def test_threads_are_awaited_until_two_looks_find_them_unchanged(
    looks: list[dict[str, str]], waits: int
) -> None:
    found: Iterator[dict[str, str]] = iter(looks)
    sleeps: list[float] = []
    await_gloo_threads(lambda: next(found), sleeps.append)
    assert len(sleeps) == waits
    assert list(found) == []
    # A thread that waits for the interpreter's lock shows that within each of them.
    assert all(seconds > sys.getswitchinterval() for seconds in sleeps)
