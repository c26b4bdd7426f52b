"""A cluster that was used for long, for the figures of the web page: what `bench.reading` writes,
and beside it a queue, machines, a log, models and checkpoints.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from bench.figures import Scale, progress
from bench.reading import FilledTable, ScriptedAgent, fill, submit
from bench.serving import USER
from control_plane.agents.logs import TrialLogs
from control_plane.agents.reports import Report
from control_plane.agents.sessions import LogChunk
from control_plane.queries.model_records import ModelRecord
from control_plane.services import Services
from control_plane.usecases.models import create_model
from lambdas.local.embedded_cluster import POOL, build_embedded_cluster
from lambdas.local.home import HomeFolder

BEGAN_MS = 1_700_000_000_000
LINES_PER_CHUNK = 500
CHECKPOINTS_PER_TRIAL = 100
# One of them holds the only machine with the label, the others wait for it.
QUEUED_CONFIG = """
name: waits for a machine NUMBER
entrypoint: python train.py
searcher: {name: single, metric: loss, max_length: {batches: 1000}}
hyperparameters: {lr: 0.1}
resources: {agent_label: busy}
"""
CHECKPOINTS_CONFIG = """
name: checkpoints
entrypoint: python train.py
searcher: {name: random, metric: loss, max_length: {batches: 1000}, max_trials: TRIALS}
hyperparameters: {lr: {type: double, minval: 0, maxval: 1}}
resources: {agent_label: checkpoints}
checkpoint_storage: {save_experiment_best: 0, save_trial_best: 0, save_trial_latest: 100}
"""


@dataclass(frozen=True, slots=True)
class FilledCluster:
    """What the views show: experiments of many trials and of many checkpoints, and a trial with a
    million metric values, which has the log.
    """

    reading: FilledTable
    checkpoints: int


def fill_cluster(home: HomeFolder, scale: Scale) -> FilledCluster:
    """Fill the folder of a cluster that does not run."""
    with progress(f"{scale.reading_trials:,} trials, {scale.reading_values:,} values twice"):
        filled = fill(home, scale.reading_trials, scale.reading_values)
    cluster = build_embedded_cluster(home, USER)
    services: Services = cluster.app.state.services
    with progress(f"a log of {scale.page_log_lines:,} lines"):
        _write_log(services, filled.long_trial, scale.page_log_lines)
    with progress(f"{scale.page_checkpoints:,} checkpoints"):
        checkpoints = _write_checkpoints(services, filled.code, scale.page_checkpoints)
    with progress(f"{scale.page_models:,} models"):
        for number in range(scale.page_models):
            named = ModelRecord(f"model {number:05d}", USER, BEGAN_MS + number, BEGAN_MS + number)
            create_model(cluster.table, named, lambda model, revision: ())
    with progress(f"{scale.page_experiments:,} experiments in the queue"):
        services.agents.enrol("busy", POOL, ((0, "cuda", "GPU-0", "GPU"),), "1", label="busy")
        for number in range(scale.page_experiments):
            submit(services, QUEUED_CONFIG.replace("NUMBER", str(number)), filled.code)
    with progress(f"{scale.agents:,} agents"):
        for number in range(scale.agents):
            slots = ((0, "cuda", f"GPU-{number}", "GPU"),)
            services.agents.enrol(f"agent-{number:04d}", POOL, slots, "1")
    cluster.table.close()
    return FilledCluster(filled, checkpoints)


def _write_log(services: Services, trial_id: int, lines: int) -> None:
    logs = TrialLogs(services.table, services.objects)
    offset = 0
    for first in range(0, lines, LINES_PER_CHUNK):
        numbers = range(first, min(lines, first + LINES_PER_CHUNK))
        text = b"".join(b"[rank=0] INFO: line %d of what it says of itself\n" % n for n in numbers)
        chunk = LogChunk(f"{trial_id}.1", offset, text, marks=((offset, BEGAN_MS + first),))
        services.table.commit([logs.store_chunk(trial_id, chunk)])
        offset += len(text)


def _write_checkpoints(services: Services, code: str, count: int) -> int:
    """Run an experiment whose trials write so many checkpoints between them; returns its id."""
    trials = -(-count // CHECKPOINTS_PER_TRIAL)
    of_each = -(-count // trials)
    config = CHECKPOINTS_CONFIG.replace("TRIALS", str(trials))
    agent = ScriptedAgent(services.agents, "checkpoints", "checkpoints")
    experiment = submit(services, config, code)

    def lines(trial_id: int, directives: Mapping[str, Any]) -> Iterator[Report]:
        return _checkpoint_lines(trial_id, directives["length"], of_each)

    if len(agent.work(lines)) != trials:
        raise RuntimeError("not every trial wrote its checkpoints")
    return experiment


def _checkpoint_lines(trial_id: int, length: int, count: int) -> Iterator[Report]:
    yield Report(trial_id, 1, "agent", 1, {"kind": "container", "state": "RUNNING"})
    for n in range(1, count + 1):
        uuid = str(UUID(int=(trial_id << 64) + n, version=4))
        line = {
            "kind": "checkpoint",
            "uuid": uuid,
            "steps_completed": max(1, length * n // count),
            "path": f"{trial_id}/1/{n}/{uuid}",
            "manifest_sha256": "0" * 64,
            "size_bytes": 1 << 20,
            "files": 3,
        }
        yield Report(trial_id, 1, "0", 200 * n, line)
    done = {"kind": "completed", "length": length, "metric": 1 / trial_id}
    yield Report(trial_id, 1, "0", 200 * count + 100, done)
    yield Report(trial_id, 1, "agent", 2, {"kind": "exited", "reason": "completed"})
