"""Hostile values through every door into a row.

Each value is refused or stored, and no earlier request gets a worse answer afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from control_plane.access.principals import Role
from tests.hostile.api_doors import (
    DOORS,
    HostileCluster,
    leaf_places,
    with_value,
)
from tests.hostile.hostile_values import ALL, BODIES, FEW, MEBIBYTE, TEXTS
from tests.hostile.trial_doors import LINES, LineDoor, ManifestDoor
from tests.thinning import every
from tests.unit.api.cluster import build_cluster
from tests.unit.api.test_api_collection import collect


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> HostileCluster:
    folder: Path = tmp_path_factory.mktemp("hostile")
    return HostileCluster(build_cluster(folder))


# The gate tests each place with a part of the values, and all places together with all values.
PARTS_TOTAL = 6
PARTS = [0, *(pytest.param(part, marks=pytest.mark.nightly) for part in range(1, PARTS_TOTAL))]


def part_of(values: Mapping[str, bytes], part: int, place_number: int) -> dict[str, bytes]:
    """Return a part of the values, of PARTS_TOTAL parts; places start with different values."""
    texts = enumerate(values.items(), start=place_number + part)
    return {what: text for number, (what, text) in texts if number % PARTS_TOTAL == 0}


def check_no_faults(hostile: HostileCluster, faults: list[str]) -> None:
    """Check that no strike had a fault, and that all data can still be read."""
    found = faults + hostile.read_everything()
    assert not found, "\n".join(found)


def test_every_body_of_the_description_is_tested(hostile: HostileCluster) -> None:
    difference = hostile.described_bodies() ^ set(DOORS)
    assert not difference, f"DOORS of api_doors.py lacks these routes or has too many: {difference}"


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name", DOORS)
def test_hostile_values_in_a_body_are_stored_or_refused(
    hostile: HostileCluster, name: str, part: int
) -> None:
    door = DOORS[name]
    faults = []
    for what, body in BODIES.items():
        answer = hostile.send_door(name, body)
        if answer.status >= 500:
            faults.append(f"{what}: {answer.status}")
    for number, place in enumerate(leaf_places(door.body)):
        values = ALL if len(place) == 1 and place[0] in door.free else FEW
        for what, text in part_of(values, part, number).items():
            answer = hostile.send_door(name, with_value(door.body, place, text))
            if answer.status >= 500:
                faults.append(f"{what} at {place}: {answer.status}")
    check_no_faults(hostile, faults)


@pytest.mark.parametrize("part", PARTS)
def test_hostile_manifest_is_checked_before_the_checkpoint_exists(
    hostile: HostileCluster, part: int
) -> None:
    door, faults = ManifestDoor(hostile.cluster), []
    for what, body in BODIES.items():
        if body and (answer := door.complete(body)).status != 422:
            faults.append(f"{what}: {answer.status}")
    for number, place in enumerate(leaf_places(door.manifest())):
        values = ALL if place == ("metadata",) else FEW
        for what, text in part_of(values, part, number).items():
            answer = door.complete(with_value(door.manifest(), place, text))
            if answer.status >= 500:
                faults.append(f"{what} at {place}: {answer.status}")
    check_no_faults(hostile, faults)


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("kind", LINES)
def test_hostile_line_of_a_trial_stops_no_call_of_the_agent(
    hostile: HostileCluster, kind: str, part: int
) -> None:
    writer, line = LINES[kind]
    door, faults = LineDoor(hostile), []
    for place_number, place in enumerate(leaf_places(line)):
        values = ALL if place in (("metadata",), ("value",)) else FEW
        for what, text in part_of(values, part, place_number).items():
            # Agents send no such line: a line that the agent's parser cannot read is dropped.
            is_unreadable = what.startswith(("1000 ", "100000 "))
            expected = 413 if len(text) > MEBIBYTE else 422 if is_unreadable else 200
            answer = door.report(writer, with_value(line, place, text))
            if answer.status != expected:
                faults.append(f"{what} at {place}: {answer.status} {answer.body[:200]!r}")
    check_no_faults(hostile, faults)


def test_any_log_text_is_stored_and_read(hostile: HostileCluster) -> None:
    door, faults = LineDoor(hostile), []
    for what, text in TEXTS.items():
        expected = 413 if len(text) > MEBIBYTE else 200
        if (answer := door.log(text)).status != expected:
            faults.append(f"{what}: {answer.status} {answer.body[:200]!r}")
    check_no_faults(hostile, faults)


# Places of a configuration whose values reach rows: of experiments, trials and listings.
CONFIG_PLACES = {
    "name": "name: {}",
    "description": "description: {}",
    "a label": "labels: [{}]",
    "data": "data: {{x: {}}}",
    "a constant": "hyperparameters: {{x: {}}}",
    "a value of a constant": "hyperparameters: {{x: {{type: const, val: {}}}}}",
    "a choice": "hyperparameters: {{x: {{type: categorical, vals: [1, {}]}}}}",
    "a name of a hyperparameter": "hyperparameters: {{{}: 1}}",
    "a variable": "environment: {{environment_variables: {{X: {}}}}}",
    "an entrypoint": "entrypoint: [python, {}]",
    "a metric": "searcher: {{name: single, metric: {}, max_length: {{batches: 1}}}}",
    "a project": "project: {}",
    "bounds": "hyperparameters: {{x: {{type: double, minval: 0, maxval: {}}}}}",
}
SINGLE = """
entrypoint: python train.py
searcher: {name: single, metric: loss, max_length: {batches: 10}}
"""


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("place", every(3, CONFIG_PLACES))
def test_hostile_configuration_is_stored_or_refused_by_every_way(
    hostile: HostileCluster, place: str, part: int
) -> None:
    cluster, faults = hostile.cluster, []
    code, form = cluster.store_code(), CONFIG_PLACES[place]
    values = part_of(FEW, part, list(CONFIG_PLACES).index(place))
    for number, (what, text) in enumerate(values.items()):
        line = form.format(text.decode())
        own = {"config": line if line.startswith(("entry", "search")) else SINGLE + line}
        added = {"config": SINGLE, "overrides": [line.replace(": ", "=", 1)]}
        in_template = {"config": SINGLE, "template": "hostile"}
        template = json.dumps({"config": line}).encode()
        answers = [hostile.send("PUT", "/templates/hostile", template, Role.USER)]
        for way in (own, (added, in_template)[number % 2]):
            body = {**way, "model_code": code, "paused": True}
            answers.append(cluster.post("/experiments", body))
        if any(answer.status >= 500 for answer in answers):
            faults.append(f"{what}: {[answer.status for answer in answers]}")
    check_no_faults(hostile, faults)


def test_all_experiments_can_be_deleted_afterwards(hostile: HostileCluster) -> None:
    cluster = hostile.cluster
    # Versions of models keep checkpoints.
    assert hostile.send("DELETE", "/models/m", b"", Role.USER).status in (200, 404)
    numbers = hostile.experiment_ids()
    for number in numbers:
        assert cluster.post(f"/experiments/{number}/kill", {}).status < 500
    hostile.end_allocations()
    for number in numbers:
        answer = hostile.send("DELETE", f"/experiments/{number}", b"", Role.USER)
        assert answer.status < 300, answer.body
    collect(cluster)
    assert hostile.experiment_ids() == []
