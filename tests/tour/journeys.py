"""The journeys of the tour. Each prepares a cluster, and records what the last actions cause."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.tour.cluster import TourCluster
from tests.tour.recorder import Hop, Recorder
from tests.unit.api.agent_side import AppAgent, checkpoint_line, metrics

CONFIG = """
name: tour
entrypoint: python train.py
searcher: {searcher}
hyperparameters:
  x: {{type: double, minval: 0, maxval: 1}}
reproducibility: {{experiment_seed: 7}}
"""
RANDOM = "{name: random, metric: loss, max_length: {batches: 10}, max_trials: 1}"
HALVING = (
    "{name: async_halving, metric: loss, max_length: {batches: 16}, num_rungs: 2, divisor: 2, "
    "max_trials: 2, max_concurrent_trials: 1}"
)


@dataclass(frozen=True)
class Journey:
    """A journey of the tour."""

    title: str
    """The first and the last hop, for readers."""
    run: Callable[[Path, Recorder], None]
    """Runs the journey with an empty folder. The recorder gets the hops."""


def run_journey(name: str, folder: Path) -> list[Hop]:
    """Run a journey of JOURNEYS in an empty folder; return the hops."""
    recorder = Recorder()
    JOURNEYS[name].run(folder, recorder)
    return recorder.hops


def _create(folder: Path, recorder: Recorder) -> None:
    cluster = TourCluster(folder, recorder)
    agent = AppAgent(cluster.app)
    with recorder.record():
        cluster.post_experiment(CONFIG.format(searcher=RANDOM))
        _sync(agent, recorder)


def _metric(folder: Path, recorder: Recorder) -> None:
    cluster = TourCluster(folder, recorder)
    agent = AppAgent(cluster.app)
    cluster.post_experiment(CONFIG.format(searcher=HALVING))
    (first,) = agent.take_work()
    agent.report(first, *_validation_lines(0.5))
    second = agent.take_work()[-1]
    with recorder.record():
        # The second of two trials is promoted, because half of the trials are promoted.
        _sync(agent, recorder, reports=agent.entries(second, *_validation_lines(0.4)))


def _validation_lines(loss: float) -> list[dict[str, Any]]:
    """Return the lines of a trial that validates at the end of the first rung."""
    validation = metrics(8, "validation", loss=loss)
    return [validation, {"kind": "completed", "length": 8, "metric": loss}]


def _notice(folder: Path, recorder: Recorder) -> None:
    cluster = TourCluster(folder, recorder, has_cloud=True)
    cluster.post_experiment(CONFIG.format(searcher=RANDOM))
    cluster.provision()
    agent = AppAgent(cluster.app, "i-000000")
    (allocation,) = agent.take_work()
    cluster.provision()
    saved = checkpoint_line(1, 1, 6)
    exited = {"kind": "exited", "reason": "preempted", "code": 0, "notice_outcome": "saved"}
    exited["notice"] = "the machine is about to end"
    with recorder.record():
        deadline_ms = cluster.adapters.clock() + 120_000
        _sync(agent, recorder, notice={"deadline_ms": deadline_ms})
        lines = agent.entries(allocation, saved)
        lines += agent.entries(allocation, exited, writer="agent")
        _sync(agent, recorder, reports=lines)
        cluster.provision()
        replacement = AppAgent(cluster.app, "i-000001")
        _sync(replacement, recorder)


def _sync(agent: AppAgent, recorder: Recorder, **fields: Any) -> None:
    """Send a sync of the agent, and record the desired state in the answer."""
    answer = agent.sync(**fields)
    assert answer.status == 200, answer.body
    desired = [_describe_entry(entry) for entry in answer.json["desired"]]
    recorder.add(f"answer to {agent.name}: {'; '.join(desired) or 'no allocations'}")


def _describe_entry(entry: Mapping[str, Any]) -> str:
    """Return an entry of an agent's desired state as text: what to run, and the directives."""
    text = f"{entry['state']} {entry['allocation']}"
    if code := entry.get("code"):
        text += f", code {code['sha256'][:8]}"
    if spec := entry.get("spec"):
        checkpoint = spec["latest_checkpoint"]
        start = f" from step {checkpoint['steps_completed']}" if checkpoint else ""
        text += f", {spec['entrypoint']!r}{start}"
    if directives := entry.get("directives"):
        text += f", train to {directives['length']}{' and end' if directives['closed'] else ''}"
    return text


JOURNEYS: Mapping[str, Journey] = {
    "create": Journey(
        "from POST /experiments to the user's code being desired on an agent", _create
    ),
    "metric": Journey("from a validation report to the searcher's directive", _metric),
    "notice": Journey(
        "from the notice of a spot instance to its replacement and the resumed trial", _notice
    ),
}
