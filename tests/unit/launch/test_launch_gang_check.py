"""The check of a gang's machines: rounds, verdicts, missing devices, and crashes of the check."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from detcloud.core.channel import channel_key, open_channels
from detcloud.launch import gang_check, gang_workers
from detcloud.launch.gang import Gang
from detcloud.launch.gang_check import check_machines, run_checker, seconds_max
from detcloud.launch.gang_checker import (
    Checker,
    NodeFacts,
    Round,
    Verdict,
    find_facts,
    meeting_patience,
)
from detcloud.launch.gang_workers import NodeResult, WorkerPlace, run_workers, worker_environment
from detcloud.shared.gang_faults import Group
from detcloud.shared.ports import find_free_port
from detcloud.shared.trial_directory import TrialDirectory
from tests.conftest import require_installed
from tests.patience import PROCESS_SECONDS_MAX

GOOD = NodeFacts(1, has_torch=True, problem="")
TIMED_OUT = "the all-reduce took too long"
Outcome = Callable[[Group, int], NodeResult]


def gang(nodes: int, rank: int = 0) -> Gang:
    return Gang(nodes, rank, ("127.0.0.1",) * nodes, 1, 20_480)


class OutcomeChecker(Checker):
    """A checker whose all-reduces have given outcomes."""

    def __init__(self, rank: int, outcome: Outcome, *rest: Any) -> None:
        super().__init__(*rest)
        self.rank, self.outcome = rank, outcome

    def _run_group(self, group: Group, plan: Round) -> NodeResult:
        return self.outcome(group, self.rank)


def check(
    nodes: int,
    outcome: Outcome,
    facts: Sequence[NodeFacts] = (),
    socket: Path | None = None,
    **settings: object,
) -> Verdict:
    """Run the checkers of all nodes, and return the verdict, which must be equal everywhere."""
    assert socket is not None
    verdicts: dict[int, Verdict] = {}

    def run(rank: int) -> None:
        [channel] = open_channels(rank, nodes, str(socket), channel_key("check"), 1)
        checker = OutcomeChecker(rank, outcome, gang(nodes, rank), channel, settings)
        verdicts[rank] = checker.run(facts[rank] if facts else GOOD)
        channel.gather(None)
        channel.close()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(nodes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PROCESS_SECONDS_MAX)
    assert len({verdict.text for verdict in verdicts.values()}) == 1
    return verdicts[0]


def bad_nodes(*bad: int) -> Outcome:
    """Return outcomes by which each group with a bad node fails."""

    def outcome(group: Group, rank: int) -> NodeResult:
        is_bad = len(group) > 1 and any(node in bad for node in group)
        return NodeResult(0.0, "", TIMED_OUT) if is_bad else NodeResult(100.0, "cpu", "")

    return outcome


@pytest.fixture
def socket(tmp_path: Path) -> Path:
    return tmp_path / "s"


def test_good_machines_pass_with_the_lowest_bandwidth(socket: Path) -> None:
    verdict = check(2, lambda _, rank: NodeResult(100.0 + rank, "cpu", ""), socket=socket)
    assert verdict.text == "2 machines passed: 100 MB/s (cpu)"
    assert verdict.report == {"bandwidth": 100.0, "device": "cpu", "rounds": 1}
    assert not verdict.has_failed


def test_bad_machine_of_a_gang_is_named(socket: Path) -> None:
    verdict = check(4, bad_nodes(2), socket=socket)
    assert verdict.has_failed
    assert verdict.report is not None
    assert (verdict.report["bad_nodes"], verdict.report["bad_links"]) == ([2], [])
    assert verdict.text.startswith("failed: node 2 (127.0.0.1): ")


@pytest.mark.parametrize(("slow_rounds", "has_failed"), [(1, False), (9, True)])
def test_slow_check_is_repeated_once(socket: Path, slow_rounds: int, *, has_failed: bool) -> None:
    rounds = [0, 0, 0]

    def outcome(group: Group, rank: int) -> NodeResult:
        rounds[rank] += 1
        is_slow = rounds[rank] <= slow_rounds and 1 in group
        return NodeResult(9.0 if is_slow else 100.0, "cpu", "")

    verdict = check(3, outcome, socket=socket, limits={"cpu": 10.0})
    assert verdict.has_failed is has_failed
    if has_failed:
        assert verdict.text.endswith("9 MB/s, less than the limit of 10 MB/s")


def test_configured_limit_replaces_the_usual_limit(socket: Path) -> None:
    verdict = check(2, bad_nodes(), socket=socket, min_bandwidth=50, limits={"cpu": 500.0})
    assert not verdict.has_failed


def test_environment_without_torch_is_not_checked(socket: Path) -> None:
    facts = [GOOD, NodeFacts(1, has_torch=False, problem="")]
    verdict = check(2, bad_nodes(), facts, socket)
    assert verdict == Verdict("not checked: node 1 (127.0.0.1) has no torch")


def test_missing_devices_fail_without_an_all_reduce(socket: Path) -> None:
    facts = [GOOD, NodeFacts(2, has_torch=True, problem="nvidia-smi lists 1 of 2 GPUs")]
    verdict = check(2, bad_nodes(), facts, socket)
    assert verdict.report is not None
    assert verdict.report["bad_nodes"] == [1]


def test_two_machines_blame_a_link_only_if_the_pool_has_passed_before(socket: Path) -> None:
    assert check(2, bad_nodes(1), socket=socket).report is None
    verdict = check(2, bad_nodes(1), socket=socket, has_passed_before=True)
    assert verdict.report is not None
    assert (verdict.report["bad_nodes"], verdict.report["bad_links"]) == ([], [[0, 1]])


def test_machine_that_fails_alone_is_bad(socket: Path) -> None:
    def outcome(group: Group, rank: int) -> NodeResult:
        return NodeResult(0.0, "", TIMED_OUT) if 1 in group else NodeResult(100.0, "cpu", "")

    verdict = check(2, outcome, socket=socket)
    assert verdict.report is not None
    assert verdict.report["bad_nodes"] == [1]


def test_environment_in_which_nothing_passes_blames_nobody(socket: Path) -> None:
    verdict = check(3, lambda *_: NodeResult(0.0, "", "x"), socket=socket, has_passed_before=True)
    assert (verdict.report, verdict.has_failed) == (None, False)


def test_gpus_that_nvidia_smi_does_not_list_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho GPU-1\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1,GPU-2")
    facts = find_facts(gang(2))
    assert (facts.workers, facts.problem) == (
        2,
        "nvidia-smi lists 1 of 2 GPUs of the trial",
    )
    smi.write_text("#!/bin/sh\nexit 9\n")
    assert find_facts(gang(2)).problem == "nvidia-smi ended with code 9"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert (find_facts(gang(2)).workers, find_facts(gang(2)).problem) == (1, "")


@pytest.mark.parametrize(
    ("script", "notice"),
    [
        ("import sys; sys.exit(7)", "the checker ended with code 7"),
        ("import time; time.sleep(60)", "timed out after"),
    ],
)
def test_crash_or_hang_of_the_checker_lets_the_trial_start(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    script: str,
    notice: str,
) -> None:
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{script}'\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    assert run_checker(0.5) == (0, None)
    assert notice in capfd.readouterr().err


def directory(tmp_path: Path, **fields: object) -> TrialDirectory:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "spec.json").write_text(json.dumps({"version": 1, **fields}))
    return TrialDirectory(tmp_path)


def test_proven_machines_are_not_checked(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    place = directory(tmp_path, gang_check={"skip": "the machines have passed within the hour"})
    check_machines(place, gang(2))
    assert "not checked: the machines have passed within the hour" in capfd.readouterr().err
    assert not place.has_report


@pytest.mark.parametrize(("code", "rank", "lines"), [(0, 0, 1), (3, 0, 1), (3, 1, 0)])
def test_first_node_reports_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, rank: int, lines: int
) -> None:
    monkeypatch.setattr(gang_check, "MOVE_SECONDS_MAX", 0.0)
    monkeypatch.setattr(gang_check, "run_checker", lambda seconds: (code, {"bandwidth": 5.0}))
    place = directory(tmp_path, gang_check={"timeout_ms": 1000})
    check_machines(place, gang(2, rank))
    report = tmp_path / "out" / "report-0.jsonl"
    written = report.read_text().splitlines() if report.exists() else []
    assert [json.loads(line)["bandwidth"] for line in written] == [5.0] * lines


def test_duration_of_a_check_is_bounded() -> None:
    # 600 s for the meeting, and 3 + 3 rounds and 4 more of 1 s + 15 s for 8 nodes.
    assert seconds_max({"timeout_ms": 1000}, 8) == 600 + 10 * 16
    assert seconds_max({"timeout_ms": "x"}, 8) == 600 + 10 * 75


def test_worker_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang_workers, "WORKER", "no_such_module")
    result = run_workers(gang(2), WorkerPlace("127.0.0.1", 1, 0, 1, 2), 5.0)
    assert (result.bandwidth, "No module named no_such_module" in result.error) == (0.0, True)


def test_workers_get_the_ranks_of_their_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    place = WorkerPlace("127.0.0.1", 29_500, 4, 2, 8)
    variables = worker_environment(gang(2), place, 1)
    assert (variables["RANK"], variables["WORLD_SIZE"], variables["LOCAL_RANK"]) == ("5", "8", "1")
    assert (variables["GLOO_SOCKET_IFNAME"], variables["NCCL_SOCKET_IFNAME"]) == ("lo", "ib0")


def missing_nodes(tmp_path: Path, rank: int, missing: tuple[int, ...], **settings: object) -> Any:
    """Return the reported fields after node `rank` of three has missed nodes for a second."""
    place = directory(tmp_path)
    patience = meeting_patience(place, gang(3, rank), {"timeout_ms": 1000, **settings})
    assert patience.seconds == 1.0
    patience.on_missing(missing)
    report = tmp_path / "out" / "report-0.jsonl"
    lines = (
        [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
    )
    return [(line["kind"], line["missing"], line["met"]) for line in lines]


@pytest.mark.parametrize(
    ("rank", "missing", "has_passed_before", "lines"),
    [
        (2, (0,), False, [("gang_meeting", [0], 0)]),
        (0, (2,), False, [("gang_meeting", [2], 1)]),
        (0, (1, 2), True, [("gang_meeting", [1, 2], 0)]),
        # The network of the machines may not allow the check.
        (0, (1, 2), False, []),
    ],
)
def test_nodes_report_the_nodes_that_they_miss(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    rank: int,
    missing: tuple[int, ...],
    *,
    has_passed_before: bool,
    lines: list[tuple[str, list[int], int]],
) -> None:
    assert missing_nodes(tmp_path, rank, missing, has_passed_before=has_passed_before) == lines
    assert f"node {rank} (127.0.0.1) has not met node {missing[0]}" in capfd.readouterr().err


@pytest.mark.nightly
def test_real_all_reduce_of_two_workers_has_a_bandwidth() -> None:
    require_installed("torch")
    result = run_workers(gang(2), WorkerPlace("127.0.0.1", find_free_port(), 0, 2, 2), 60.0)
    assert (result.error, result.device) == ("", "cpu")
    assert result.bandwidth > 1
    alone = run_workers(gang(2), WorkerPlace("127.0.0.1", find_free_port(), 0, 1, 2), 3.0)
    assert alone.error
