"""The deployed functions themselves: short, and quick to import what they need and nothing else."""

import subprocess
import sys
from pathlib import Path

import pytest

from infra.aws.names import FUNCTIONS

LAMBDAS = Path(__file__).parents[3] / "lambdas"
# What AWS gives a function to begin with, of which half is for the machine it runs on.
IMPORT_SECONDS_MAX = 5.0


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_entry_point_is_short(name: str) -> None:
    assert len((LAMBDAS / f"{name}.py").read_text().splitlines()) <= 40


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if name != "api"])
def test_a_function_that_serves_nobody_imports_no_api(name: str) -> None:
    check = f"""
import sys, time
began = time.perf_counter()
import lambdas.{name}
assert time.perf_counter() - began < {IMPORT_SECONDS_MAX}, "it takes too long"
found = {{it.partition(".")[0] for it in sys.modules}} & {{"fastapi", "torch", "optuna", "pulumi"}}
assert not found, found
"""
    subprocess.run([sys.executable, "-c", check], check=True, env=_environment(), timeout=60)


def _environment() -> dict[str, str]:
    repository = LAMBDAS.parent
    return {
        "PYTHONPATH": f"{repository}:{repository / 'harness'}",
        "POWERTOOLS_TRACE_DISABLED": "true",
        "AWS_REGION": "eu-central-1",
    }
