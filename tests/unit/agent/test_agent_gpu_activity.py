"""Whether a computing GPU keeps an idle run alive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import pytest

from detcloud.agent.gpu_activity import BUSY_PERCENT_MIN, GpuActivity
from detcloud.agent.node import Node
from detcloud.agent.slots import SlotsUnknown


class FakeNode:
    def __init__(self, watches: dict[str, set[str]]) -> None:
        self.watches = watches
        self.used: list[str] = []

    def list_idle_watches(self) -> dict[str, set[str]]:
        return self.watches

    def note_use(self, name: str) -> None:
        self.used.append(name)


class Smi:
    def __init__(self, percentages: Mapping[str, int]) -> None:
        self.percentages = percentages
        self.calls = 0
        self.trouble = ""

    def __call__(self) -> Mapping[str, int]:
        self.calls += 1
        if self.trouble:
            raise SlotsUnknown(self.trouble)
        return self.percentages


def activity(node: FakeNode, smi: Smi, lines: list[str] | None = None) -> GpuActivity:
    written: list[str] = [] if lines is None else lines
    return GpuActivity(cast(Node, node), written.append, smi)


@pytest.mark.parametrize(("percent", "is_used"), [(0, False), (4, False), (5, True), (100, True)])
def test_run_with_a_computing_gpu_is_used(percent: int, is_used: bool) -> None:
    node = FakeNode({"1.1": {"GPU-a", "GPU-b"}, "2.1": {"GPU-c"}})
    activity(node, Smi({"GPU-a": 0, "GPU-b": percent, "GPU-c": 0, "GPU-d": 100})).look()
    assert node.used == (["1.1"] if is_used else [])
    assert BUSY_PERCENT_MIN == 5


def test_nothing_is_called_without_an_idle_timeout() -> None:
    smi = Smi({"GPU-a": 100})
    activity(FakeNode({}), smi).look()
    assert smi.calls == 0


def test_failing_smi_counts_as_use_and_is_logged_once() -> None:
    node, smi, lines = FakeNode({"1.1": {"GPU-a"}}), Smi({"GPU-a": 0}), list[str]()
    watched = activity(node, smi, lines)
    smi.trouble = "nvidia-smi failed: no driver"
    watched.look()
    watched.look()
    assert node.used == ["1.1", "1.1"]
    assert len(lines) == 1
    assert "no driver" in lines[0]
    smi.trouble = ""
    watched.look()
    smi.trouble = "nvidia-smi failed: no driver"
    watched.look()
    assert node.used == ["1.1"] * 3
    assert len(lines) == 2
