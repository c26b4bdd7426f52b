"""Trials that take their own directory apart: the agent ends them all the same, and goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from detcloud.agent.allocation.allocation import Allocation
from tests.integration.trial_node import TrialNode, opened
from tests.patience import wait_until

pytestmark = pytest.mark.end_to_end

# What a trial does in its code's folder, beside which in/, out/ and agent/ lie.
ATTACKS = {
    "the inputs are gone": "rm -rf ../in",
    "the inputs are a file": "rm -rf ../in; touch ../in",
    "the agent's records are gone": "rm -rf ../agent",
    "pipes lie where the agent writes": (
        "cd ../agent; rm report-agent.jsonl trial.log;"
        " mkfifo report-agent.jsonl trial.log kill.json exit.json; cd ../code"
    ),
    "folders lie where records are written": "mkdir ../agent/exit.json ../agent/.exit.json.new",
    "a lock that nobody holds": "rm ../agent/lock; touch ../agent/lock",
}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[TrialNode]:
    yield TrialNode(tmp_path / "node")
    for one in opened:
        one.node.close()
    opened.clear()


def begin(node: TrialNode, attack: str) -> tuple[Allocation, int]:
    """Start a trial that makes its attack, ignores SIGTERM and stays; returns its process too."""
    process, done = node.folder / "process", node.folder / "done"
    script = f"trap '' TERM\necho $$ > {process}\n{attack}\ntouch {done}\n"
    script += "while true; do sleep 0.1; done\n"
    allocation = node.begin("4.1", {"train.sh": script}, entrypoint="exec sh train.sh")
    # To remove the records ends a trial, maybe before it comes so far.
    node.watch(allocation, lambda: done.exists() or not allocation.is_active)
    return allocation, int(process.read_text())


def is_running(process: int) -> bool:
    with suppress(OSError):
        os.kill(process, 0)
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    return False


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_a_kill_ends_a_trial_whatever_it_has_done_to_its_folder(
    node: TrialNode, attack: str
) -> None:
    allocation, process = begin(node, attack)
    with suppress(OSError):
        allocation.apply_directives({"revision": 2, "length": 4, "closed": True})
    with suppress(OSError):
        allocation.kill(grace_ms=100)

    def look() -> bool:
        with suppress(OSError):
            allocation.poll()
        allocation.scan_output()
        return not allocation.is_active

    wait_until(look)
    wait_until(lambda: not is_running(process))
    last = json.loads(allocation.lines("agent", 0, 1 << 20)[-1].raw)
    assert last["kind"] == "exited"


def test_a_record_of_its_end_that_a_trial_forges_is_not_believed(node: TrialNode) -> None:
    forged = json.dumps({"stage": "trial", "code": 0, "signal": None, "killed": False})
    allocation, process = begin(node, f"echo '{forged}' > ../agent/exit.json")
    for _ in range(5):
        allocation.poll()
    assert allocation.is_active
    assert is_running(process)
    allocation.kill(grace_ms=100)
    node.watch(allocation)
    last = json.loads(allocation.lines("agent", 0, 1 << 20)[-1].raw)
    assert (last["reason"], last["signal"]) == ("killed", 9)
