"""Failures of an entrypoint that every further run would repeat."""

from __future__ import annotations

import pytest

from detcloud.agent.allocation.entrypoint_failure import is_lasting_failure
from detcloud.agent.runtime import Phase, Status


def lasts(
    log: str,
    code: int = 1,
    *,
    has_trained: bool = False,
    stage: str = "trial",
    killed: bool = False,
) -> bool:
    status = Status(Phase.ENDED, stage, code, killed=killed)
    return is_lasting_failure(status, log, has_trained=has_trained)


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("ModuleNotFoundError: No module named 'nope'", 1),
        ("ImportError: cannot import name 'x' from 'model' (/code/model.py)", 1),
        ("SyntaxError: invalid syntax", 1),
        ("IndentationError: unexpected indent", 1),
        ("[rank=0] ModuleNotFoundError: No module named 'nope'", 1),
        ("detcloud: entrypoint 'a:B': there is no module 'a' in /code", 1),
        ("/usr/bin/python3: No module named nope", 1),
        ("python3: can't open file '/code/nope.py': [Errno 2] No such file or directory", 2),
        ("sh: 1: pyhton3: not found", 127),
        ("sh: line 1: pyhton3: command not found", 127),
    ],
)
def test_unloadable_code_is_a_lasting_failure(line: str, code: int) -> None:
    log = f"starting\n{line}\n[detcloud] rank 0 failed; all workers were ended\n"
    assert lasts(log, code)
    assert not lasts(log, code, has_trained=True)
    assert not lasts(log, code, killed=True)
    assert not lasts(log, code, stage="hook")
    assert not lasts(log, 3)
    assert not lasts(f"{line}\nlater\n", code)


@pytest.mark.parametrize(
    "line",
    [
        "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
        "ImportError: /x.so: undefined symbol: f",
        "RuntimeError: CUDA out of memory",
        "ConnectionError: ModuleNotFoundError: x",
        "",
    ],
)
def test_transient_failures_are_not_lasting(line: str) -> None:
    assert not lasts(f"{line}\n")


def test_empty_log_is_no_lasting_failure() -> None:
    assert not lasts("", 127)
