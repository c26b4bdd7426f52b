"""The examples of docs/python/frameworks.md run without a cluster."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, require_installed
from tests.examples_of_docs import EXAMPLES
from tests.patience import PROCESS_SECONDS_MAX


# Each process imports torch and a framework, which takes seconds.
@pytest.mark.nightly
@pytest.mark.parametrize("framework", ["keras", "transformers", "lightning", "deepspeed"])
def test_examples_of_a_framework_run(tmp_path: Path, framework: str) -> None:
    require_installed(framework)
    path = os.pathsep.join([str(ROOT), str(ROOT / "harness")])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-P", str(EXAMPLES / f"frameworks_{framework}.py")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[detcloud] checkpoint" in done.stdout
