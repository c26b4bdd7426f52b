"""Environment variables that decide whether a trial can be forked from a template process."""

from __future__ import annotations

import pytest

from detcloud.agent.assignment.environment import shared_environment
from detcloud.agent.processes.fork_server import READ_AT_IMPORT


@pytest.mark.parametrize(
    "name",
    [
        "PYTHONPATH",
        "PYTHONHASHSEED",
        "LD_PRELOAD",
        "LD_LIBRARY_PATH",
        "OMP_NUM_THREADS",
        "GOMP_SPINCOUNT",
        "KMP_AFFINITY",
        "MKL_NUM_THREADS",
        "MKLDNN_VERBOSE",
        "OPENBLAS_CORETYPE",
        "TORCH_LOGS",
        "TORCHINDUCTOR_CACHE_DIR",
        "PYTORCH_CUDA_ALLOC_CONF",
        "CUDA_LAUNCH_BLOCKING",
        "CUBLAS_WORKSPACE_CONFIG",
        "NCCL_DEBUG",
        "LANG",
        "LC_ALL",
        "TZ",
        "MALLOC_ARENA_MAX",
    ],
)
def test_variables_read_at_import_require_a_plain_start(name: str) -> None:
    assert READ_AT_IMPORT.match(name)


@pytest.mark.parametrize("name", ["COLOUR", "DATA_DIR", "AWS_REGION", "MY_TORCH", "HOME", "TMPDIR"])
def test_variables_not_read_at_import_allow_a_fork(name: str) -> None:
    assert not READ_AT_IMPORT.match(name)


def test_trials_of_an_agent_share_variables_read_at_import() -> None:
    shared = shared_environment({"LANG": "C.UTF-8", "SECRET": "x"}, 2)
    assert {name: shared[name] for name in ("LANG", "OMP_NUM_THREADS", "PYTHONHASHSEED")} == {
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "2",
        "PYTHONHASHSEED": "0",
    }
    assert "SECRET" not in shared
