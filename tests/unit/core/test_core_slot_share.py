"""The memory limit of a trial that shares a GPU. No GPU is here, so torch's calls are recorded."""

import pytest
import torch

from detcloud.core.slot_share import VARIABLE, limit_device_memory


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, int]]:
    """Record the memory limits on a machine with two GPUs."""
    recorded: list[tuple[float, int]] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(
        torch.cuda,
        "set_per_process_memory_fraction",
        lambda share, device: recorded.append((share, device)),
    )
    return recorded


def test_share_limits_the_memory_of_each_device(
    limits: list[tuple[float, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "0.25")
    limit_device_memory()
    assert limits == [(0.25, 0), (0.25, 1)]


def test_trial_with_own_slots_has_no_limit(
    limits: list[tuple[float, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    limit_device_memory()
    assert limits == []


def test_machine_without_gpus_has_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0.25")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    limit_device_memory()
