"""The process that checks a gang's machines, `python -m detcloud.launch.gang_checker`.

The checkers of all nodes meet at the trial's first node over a channel. All nodes exchange their
results, so that each node knows the next round (detcloud/shared/gang_faults.py). In a round, the
nodes of a group run an all-reduce together. Notices go to stderr, and node 0 prints the result as
JSON to stdout.

A node that does not meet the other nodes reports the missing nodes. Only the cluster can compare
the reports of nodes without connections.
"""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from detcloud.core.channel import Channel, Patience, channel_key, open_channels
from detcloud.launch.gang import CHANNEL_PORT_OFFSET, Gang
from detcloud.launch.gang_check import FAILED_CODE, print_notice, render_result, round_seconds
from detcloud.launch.gang_workers import NodeResult, WorkerPlace, run_workers
from detcloud.shared.errors import DetcloudError
from detcloud.shared.gang_faults import FaultSearch, Group, begin_search, record_round
from detcloud.shared.parent_death import end_with_parent
from detcloud.shared.plurals import count_text
from detcloud.shared.ports import find_free_port, is_port_free
from detcloud.shared.trial_directory import TrialDirectory

MISSING_MAX = 16
"""The most missing nodes in a report."""
SMI_SECONDS = 30.0
SMI_ARGV = ("nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader")


@dataclass(frozen=True)
class NodeFacts:
    """The facts about a node before the first round."""

    workers: int
    """The number of workers of the node: the number of GPUs, 1 without GPUs."""
    has_torch: bool
    """Whether the trial's environment has torch."""
    problem: str
    """The missing devices, or ""."""


@dataclass(frozen=True)
class Verdict:
    """The end of a check."""

    text: str
    """The result for the trial's log."""
    report: dict[str, Any] | None = None
    """The result for the cluster. None: nothing is known about the machines."""
    has_failed: bool = False
    """Whether machines or links are bad."""


@dataclass(frozen=True)
class Round:
    """The groups of a round, and the port of each node."""

    groups: tuple[Group, ...]
    ports: tuple[int, ...]


class Checker:
    """The check, as seen by a node. The methods run on all nodes in the same order."""

    def __init__(self, gang: Gang, channel: Channel, settings: dict[str, Any]) -> None:
        self._gang = gang
        self._channel = channel
        self._settings = settings
        self._facts: list[NodeFacts] = []

    def run(self, own: NodeFacts) -> Verdict:
        """Check the machines. Return the verdict, which is equal on all nodes.

        Raises DetcloudError if another node's checker has exited.
        """
        self._facts = self._exchange(own)
        if early := self._judge_facts():
            return early
        search = begin_search(self._gang.nodes)
        results = self._run_round(search.groups)
        failures = self._failures(search.groups[0], results)
        if failures and all(result.bandwidth for result in results):
            # A single slow figure may be noise.
            results = self._run_round(search.groups)
            failures = self._failures(search.groups[0], results)
        if not failures:
            return self._passed_verdict(results)
        self._notice(f"the check of all machines failed: {failures}; searching by halves")
        search = record_round(search, ())
        while not search.is_over:
            groups = search.groups
            results = self._run_round(groups)
            passed = [group for group in groups if not self._failures(group, results)]
            search = record_round(search, passed)
        return self._judge_search(search, failures)

    def _judge_facts(self) -> Verdict | None:
        """Return a verdict without an all-reduce: missing devices, or no torch. None otherwise."""
        bad = [rank for rank, facts in enumerate(self._facts) if facts.problem]
        if bad:
            text = "; ".join(f"{self._name(rank)}: {self._facts[rank].problem}" for rank in bad)
            return _fault_verdict(text, tuple(bad), (), 1)
        without = [rank for rank, facts in enumerate(self._facts) if not facts.has_torch]
        if without:
            return Verdict(f"not checked: {self._name(without[0])} has no torch")
        return None

    def _judge_search(self, search: FaultSearch, failures: str) -> Verdict:
        """Return the verdict after the search.

        If no group has passed, each machine is checked alone. If then no machine passes, or the
        pool has never passed a check, the environment or the network may be the reason.
        """
        bad_nodes, bad_links = search.bad_nodes, search.bad_links
        if not search.has_passed:
            alone = tuple((rank,) for rank in range(self._gang.nodes))
            results = self._run_round(alone)
            failed = tuple(rank for (rank,) in alone if results[rank].error)
            if len(failed) == self._gang.nodes or not (
                failed or self._settings.get("has_passed_before")
            ):
                return Verdict(f"the check has no result, since no machines passed: {failures}")
            if failed:
                bad_nodes, bad_links = failed, ()
        if not bad_nodes and not bad_links:
            return Verdict(f"the check has no result: {failures}")
        names = [self._name(rank) for rank in bad_nodes]
        names += [f"the link of {self._name(a)} and {self._name(b)}" for a, b in bad_links]
        return _fault_verdict(
            f"{', '.join(names)}: {failures}", bad_nodes, bad_links, search.rounds
        )

    def _passed_verdict(self, results: list[NodeResult]) -> Verdict:
        bandwidth = min(result.bandwidth for result in results)
        device = results[0].device
        machines = count_text(self._gang.nodes, "machine")
        report = {"bandwidth": bandwidth, "device": device, "rounds": 1}
        return Verdict(f"{machines} passed: {bandwidth:.0f} MB/s ({device})", report)

    def _run_round(self, groups: tuple[Group, ...]) -> list[NodeResult]:
        """Run the all-reduces of a round. Return the results of all nodes, by rank."""
        ports = tuple(self._exchange(self._free_port()))
        own = self._gang.node_rank
        plan = Round(groups, ports)
        group = next((group for group in plan.groups if own in group), None)
        result = NodeResult(0.0, "", "") if group is None else self._run_group(group, plan)
        return self._exchange(result)

    def _run_group(self, group: Group, plan: Round) -> NodeResult:
        counts = [self._facts[rank].workers for rank in group]
        at = group.index(self._gang.node_rank)
        workers = counts[at]
        if len(group) == 1 and workers == 1 and not os.environ.get("CUDA_VISIBLE_DEVICES"):
            # Two processes of the machine communicate.
            counts, workers = [2], 2
        leader = group[0]
        place = WorkerPlace(
            host="127.0.0.1" if len(group) == 1 else self._gang.hosts[leader],
            port=plan.ports[leader],
            first_rank=sum(counts[:at]),
            workers=workers,
            size=sum(counts),
        )
        return run_workers(self._gang, place, round_seconds(self._settings))

    def _failures(self, group: Group, results: list[NodeResult]) -> str:
        """Return why a group failed: an error, or too low a bandwidth. "" if the group passed."""
        for rank in group:
            if results[rank].error:
                return f"{self._name(rank)}: {results[rank].error}"
        slowest = min(results[rank].bandwidth for rank in group)
        limit = self._limit(results[group[0]].device)
        if slowest < limit:
            return f"{slowest:.0f} MB/s, less than the limit of {limit:.0f} MB/s"
        return ""

    def _limit(self, device: str) -> float:
        configured = self._settings.get("min_bandwidth")
        limit = (self._settings.get("limits") or {}).get(device, 0.0)
        return float(limit if configured is None else configured)

    def _exchange(self, value: Any) -> list[Any]:
        """Return the values of all nodes on every node, by rank."""
        values: list[Any] = self._channel.broadcast(self._channel.gather(value))
        return values

    def _free_port(self) -> int:
        """Return the trial's port if the port is free on this machine, else any free port."""
        port = self._gang.port
        return port if port and is_port_free(port) else find_free_port()

    def _name(self, rank: int) -> str:
        return node_name(self._gang, rank)

    def _notice(self, text: str) -> None:
        if self._gang.node_rank == 0:
            print_notice(text)


def main() -> int:
    """Check the machines. Return FAILED_CODE if machines or links are bad, and otherwise 0."""
    end_with_parent(os.getppid())
    directory = TrialDirectory.from_environment()
    gang = Gang.from_environment()
    if directory is None or gang.port is None:
        return 0
    spec = directory.spec
    key = channel_key("gang-check", spec.cluster_id, spec.allocation_id)
    address = (gang.chief, gang.port - CHANNEL_PORT_OFFSET)
    try:
        own = find_facts(gang)
        settings = spec.gang_check or {}
        patience = meeting_patience(directory, gang, settings)
        channel = open_channels(gang.node_rank, gang.nodes, address, key, 1, patience)[0]
        verdict = Checker(gang, channel, settings).run(own)
        # The chief closes last, so that no node reads a closed connection.
        channel.gather(None)
        channel.close()
    except DetcloudError as error:
        print_notice(f"the machines could not be checked: {error}")
        return 0
    if gang.node_rank == 0:
        print_notice(f"check of the machines: {verdict.text}")
        if verdict.report is not None:
            print(render_result(verdict.report), flush=True)
    return FAILED_CODE if verdict.has_failed else 0


def meeting_patience(directory: TrialDirectory, gang: Gang, settings: dict[str, Any]) -> Patience:
    """Return the patience by which this node reports nodes that it has not met.

    The time is the longest duration of an all-reduce. Each node prints the missing nodes to the
    trial's log, and reports them to the cluster, which compares the reports. If node 0 has met no
    node, and the pool has never passed a check, the network may not allow the check, so node 0
    reports nothing.
    """
    seconds = round_seconds(settings)

    def report(missing: tuple[int, ...]) -> None:
        names = ", ".join(node_name(gang, rank) for rank in missing)
        print_notice(f"{node_name(gang, gang.node_rank)} has not met {names} in {seconds:.0f} s")
        met = gang.nodes - 1 - len(missing) if gang.node_rank == 0 else 0
        if gang.node_rank == 0 and not met and not settings.get("has_passed_before"):
            return
        listed = list(missing[:MISSING_MAX])
        try:
            directory.report.append("gang_meeting", missing=listed, met=met, seconds=seconds)
        except DetcloudError as error:
            print_notice(f"the missing nodes cannot be reported: {error}")

    return Patience(seconds, report)


def node_name(gang: Gang, rank: int) -> str:
    """Return a node's rank and address for users."""
    return f"node {rank} ({gang.hosts[rank]})" if rank < len(gang.hosts) else f"node {rank}"


def find_facts(gang: Gang) -> NodeFacts:
    """Return the facts about this node: workers, torch, and missing GPUs."""
    promised = [uuid for uuid in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if uuid]
    has_torch = find_spec("torch") is not None
    return NodeFacts(len(promised) or 1, has_torch, _missing_devices(promised))


def _missing_devices(promised: list[str]) -> str:
    """Return which promised GPUs nvidia-smi does not list, or "".

    Without nvidia-smi in the trial's environment, nothing is known, and the all-reduce decides.
    """
    if not promised:
        return ""
    try:
        ended = subprocess.run(
            SMI_ARGV,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SMI_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        return ""
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"nvidia-smi failed: {error}"
    if ended.returncode:
        return f"nvidia-smi ended with code {ended.returncode}"
    listed = {line.strip() for line in ended.stdout.decode(errors="replace").splitlines()}
    missing = [uuid for uuid in promised if uuid not in listed]
    if not missing:
        return ""
    seen = len(promised) - len(missing)
    return f"nvidia-smi lists {seen} of {count_text(len(promised), 'GPU')} of the trial"


def _fault_verdict(
    text: str, bad_nodes: tuple[int, ...], bad_links: tuple[tuple[int, int], ...], rounds: int
) -> Verdict:
    report = {
        "bandwidth": 0.0,
        "bad_nodes": list(bad_nodes),
        "bad_links": [list(link) for link in bad_links],
        "rounds": rounds,
        "message": text,
    }
    return Verdict(f"failed: {text}", report, has_failed=True)


if __name__ == "__main__":
    sys.exit(main())
