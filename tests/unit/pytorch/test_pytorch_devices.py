"""The device of a trial's process on CPUs, GPUs and Macs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from detcloud.pytorch.devices import SLOT_TYPE, process_device
from detcloud.pytorch.generators import capture_state, restore_state


@pytest.fixture
def mac(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that PyTorch can use the GPU of a Mac, and that the trial has its slot."""
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setenv(SLOT_TYPE, "mps")


def test_process_without_gpus_has_the_cpu() -> None:
    assert process_device(1) == torch.device("cpu")


def test_process_has_the_gpu_of_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert process_device(3) == torch.device("cuda", 3)


@pytest.mark.usefixtures("mac")
def test_mps_needs_a_slot_of_the_type(monkeypatch: pytest.MonkeyPatch) -> None:
    assert process_device(0) == torch.device("mps")
    monkeypatch.setenv(SLOT_TYPE, "cpu")
    assert process_device(0) == torch.device("cpu")


@pytest.mark.usefixtures("mac")
def test_generator_of_the_mac_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    restored: list[Any] = []
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda: torch.tensor([7]))
    monkeypatch.setattr(torch.mps, "set_rng_state", restored.append)
    restore_state(capture_state())
    assert restored == [torch.tensor([7])]


def test_state_of_another_machine_is_restored_without_a_mac() -> None:
    restore_state({**capture_state(), "mps": torch.tensor([7])})
