"""A cluster with many ended experiments that have metrics, for the figures of the table.

An experiment runs to its end. The others are copies of its rows with other ids, names and values.
"""

import json
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

from bench.filling import services_to_fill
from bench.page_filling import BEGAN_MS
from bench.reading import ScriptedAgent, submit
from bench.serving import USER
from control_plane.actors import addresses
from control_plane.actors.experiment.state import LISTING, ExperimentState, listing_sort_key
from control_plane.actors.experiment.values import VALUES
from control_plane.agents.reports import Report
from control_plane.engine.actor_types import actor_type_at
from control_plane.engine.head import HEAD, PARTS, decode_head, encode_head
from control_plane.evolve import evolve
from control_plane.objects.store import model_code_key
from control_plane.services import Services
from control_plane.state.table import Expect, Key, Put
from local_cluster.embedded_cluster import build_embedded_cluster
from local_cluster.home import HomeFolder

METRICS = ("loss", "accuracy", "recall")
VALIDATIONS = 30
CONFIG = """
name: table
entrypoint: python train.py
searcher: {name: single, metric: loss, max_length: {batches: 300}}
hyperparameters: {lr: 0.1, layers: 3, optimizer: {name: adam, momentum: 0.9}, width: 64}
"""


def fill_experiments(home: HomeFolder, count: int) -> None:
    """Fill the folder of a stopped cluster with `count` ended experiments."""
    # Configures the pool, like the first start of a cluster.
    build_embedded_cluster(home, USER).table.close()
    with services_to_fill(home) as services:
        digest = "0" * 64
        services.objects.put(model_code_key(digest), b"")
        first = submit(services, CONFIG, digest)
        ScriptedAgent(services.agents, "table").work(_lines)
        for number in range(first + 1, first + count):
            _copy_experiment(services, first, number)


def _lines(trial_id: int, directives: Mapping[str, Any]) -> Iterator[Report]:
    """Yield the reports of the only trial."""
    return iter(_reports(trial_id, directives["length"]))


def _reports(trial_id: int, length: int) -> list[Report]:
    """Return the reports of a trial with VALIDATIONS validations."""
    chance = Random(0)
    lines = [Report(trial_id, 1, "agent", 1, {"kind": "container", "state": "RUNNING"})]
    for n in range(1, VALIDATIONS + 1):
        line = {
            "kind": "metrics",
            "group": "validation",
            "steps_completed": length * n // VALIDATIONS,
            "metrics": {name: 1 / n + chance.random() / 10 for name in METRICS},
            "time_ms": BEGAN_MS + 1_000 * n,
        }
        lines.append(Report(trial_id, 1, "0", 200 * n, line))
    done = {"kind": "completed", "length": length, "metric": 0.1}
    lines.append(Report(trial_id, 1, "0", 200 * VALIDATIONS + 100, done))
    lines.append(Report(trial_id, 1, "agent", 2, {"kind": "exited", "reason": "completed"}))
    return lines


def _copy_experiment(services: Services, source: int, number: int) -> None:
    """Store a copy of an experiment, with another id and other values."""
    table, chance = services.table, Random(number)
    values = {name: chance.random() for name in METRICS}
    address, sort = addresses.experiment(source), listing_sort_key(source)
    keys = [Key(address, HEAD), Key(address, f"{PARTS}definition")]
    keys += [Key(LISTING, sort), Key(VALUES, sort)]
    head, definition, listing, valued = (row for row in table.get_many(keys) if row is not None)
    kind = actor_type_at(address)
    header, body = decode_head(head.body)
    state = kind.decode_state(body)
    assert isinstance(state, ExperimentState)
    name = f"table {number}"
    others = {other: value for other, value in values.items() if other != "loss"}
    state = evolve(
        state, experiment_id=number, name=name, best_metric=values["loss"], best_values=others
    )
    listed = json.loads(listing.body) | {"name": name, "figures": [values["loss"], 1.0, 0]}
    hparams = json.loads(valued.body)["hparams"] | {"lr": chance.random()}
    target, target_sort = addresses.experiment(number), listing_sort_key(number)
    bodies = {
        Key(target, HEAD): encode_head(header, kind.encode_state(state)),
        Key(target, f"{PARTS}definition"): definition.body,
        Key(LISTING, target_sort): json.dumps(listed).encode(),
        Key(VALUES, target_sort): json.dumps({"hparams": hparams, "metrics": values}).encode(),
    }
    table.commit([Put(key, 1, body, Expect.ABSENT) for key, body in bodies.items()])
