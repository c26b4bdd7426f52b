"""Run of a module of these tests in a separate process, from which ranks can be forked."""

import os
import subprocess
import sys
from pathlib import Path

from tests.patience import PROCESS_SECONDS_MAX

_ROOT = Path(__file__).resolve().parents[3]


def run_module(name: str, folder: Path) -> str:
    """Run `tests.unit.pytorch.NAME FOLDER`, assert exit code 0, and return the standard output."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.unit.pytorch.{name}", str(folder)],
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": f"{_ROOT / 'harness'}:{_ROOT}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
