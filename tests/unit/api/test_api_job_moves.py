"""Changes of the job queue with conditions: no change overwrites a change that its user has not
seen, and a move can be undone.
"""

from collections.abc import Callable
from typing import Any

import pytest

from simulator.faults.table_faults import InterleavingTable
from tests.unit.api.cluster import NOW_MS, Cluster
from tests.unit.api.table_decorators import writes_to
from tests.unit.api.test_api_jobs import (
    PRIORITY,
    change,
    configure,
    error_of,
    order,
    queue,
    submit,
)


def numbers(cluster: Cluster) -> list[int]:
    return [number for number, _ in order(cluster)]


def revisions(cluster: Cluster) -> dict[int, str]:
    return {job["experiment_id"]: job["revision"] for job in queue(cluster)}


def three_jobs(cluster: Cluster) -> list[str]:
    configure(cluster, "default", PRIORITY)
    return [submit(cluster) for _ in range(3)]


def test_move_takes_effect_while_both_jobs_are_as_they_were_read(cluster: Cluster) -> None:
    jobs, seen = three_jobs(cluster), revisions(cluster)
    moved = change(cluster, jobs[2], ahead_of=jobs[0], revision=seen[3], neighbour_revision=seen[1])
    assert moved.status == 200
    assert numbers(cluster) == [3, 1, 2]
    # The answer has the revision after the move, with which the job can be changed again.
    assert moved.json["revision"] == revisions(cluster)[3] != seen[3]
    again = change(cluster, jobs[2], behind_of=jobs[1], revision=moved.json["revision"])
    assert (again.status, numbers(cluster)) == (200, [1, 2, 3])


@pytest.mark.parametrize("other", ["revision", "neighbour_revision"])
def test_move_of_a_changed_job_is_a_conflict(cluster: Cluster, other: str) -> None:
    jobs, seen = three_jobs(cluster), revisions(cluster)
    changed = {"revision": 3, "neighbour_revision": 2}[other]
    change(cluster, jobs[changed - 1], priority=50)
    before = numbers(cluster)
    refused = change(cluster, jobs[2], ahead_of=jobs[1], **{other: seen[changed]})
    status, text = error_of(refused)
    present = revisions(cluster)[changed]
    assert status == 409
    assert text == (
        f"job {changed} was changed in the meantime: it has revision {present}, not"
        f" '{seen[changed]}'; read it again and retry"
    )
    assert numbers(cluster) == before


@pytest.mark.parametrize(
    "act",
    [
        # The moved job, and the job next to which it is moved.
        lambda cluster, jobs: change(cluster, jobs[2], priority=50),
        lambda cluster, jobs: change(cluster, jobs[0], priority=50),
        lambda cluster, jobs: change(cluster, jobs[0], behind_of=jobs[1]),
    ],
)
def test_change_between_the_check_and_the_commit_is_not_overwritten(
    cluster: Cluster, act: Callable[[Cluster, list[str]], Any]
) -> None:
    jobs, seen = three_jobs(cluster), revisions(cluster)
    cluster.services.engine.table = InterleavingTable(
        cluster.services.table, lambda: act(cluster, jobs), writes_to("job-moves")
    )
    status, _ = error_of(
        change(cluster, jobs[2], ahead_of=jobs[0], revision=seen[3], neighbour_revision=seen[1])
    )
    assert status == 409
    # Only the other change took effect.
    after = revisions(cluster)
    assert sum(after[number] != seen[number] for number in seen) == 1


def test_weight_and_priority_have_the_condition_too(cluster: Cluster) -> None:
    fair = submit(cluster)
    seen = revisions(cluster)[1]
    assert change(cluster, fair, weight=2.0, revision=seen).json["weight"] == 2.0
    assert error_of(change(cluster, fair, weight=3.0, revision=seen))[0] == 409
    configure(cluster, "default", PRIORITY)
    seen = revisions(cluster)[1]
    assert change(cluster, fair, priority=7, revision=seen).json["priority"] == 7
    assert error_of(change(cluster, fair, priority=8, revision=seen))[0] == 409
    assert queue(cluster)[0]["priority"] == 7


def test_moved_job_returns_to_its_place_and_priority(cluster: Cluster) -> None:
    configure(cluster, "default", PRIORITY)
    high, low, last = (submit(cluster, f"resources.priority={n}") for n in (10, 50, 90))
    before = queue(cluster)[1]
    moved = change(cluster, low, ahead_of=high).json
    assert (moved["priority"], numbers(cluster)) == (10, [2, 1, 3])
    place = {"priority": before["priority"], "position": before["position"]}
    restored = change(cluster, low, place=place, revision=moved["revision"])
    assert restored.status == 200
    assert queue(cluster)[1] == before
    # A second undo, after somebody has changed the job, changes nothing.
    change(cluster, low, behind_of=last)
    assert error_of(change(cluster, low, place=place, revision=moved["revision"]))[0] == 409
    assert numbers(cluster) == [1, 3, 2]


def test_place_needs_a_priority_pool(cluster: Cluster) -> None:
    job = submit(cluster)
    assert queue(cluster)[0]["position"] is None
    status, text = error_of(change(cluster, job, place={"priority": 1, "position": "1"}))
    assert status == 422
    assert "place needs a pool with the priority scheduler" in text


@pytest.mark.parametrize(
    ("operation", "text"),
    [
        ({"place": {"priority": 0, "position": "1"}}, "priority"),
        ({"place": {"priority": 1, "position": "1e9"}}, "a decimal number"),
        ({"place": {"priority": 1, "position": "nan"}}, "a decimal number"),
        ({"place": {"priority": 1}}, "position"),
        ({"priority": 1, "neighbour_revision": "x"}, "needs ahead_of or behind_of"),
        ({"resource_pool": "x", "revision": "x"}, "leave out revision"),
    ],
)
def test_rejects_invalid_places_and_conditions(
    cluster: Cluster, operation: dict[str, Any], text: str
) -> None:
    configure(cluster, "default", PRIORITY)
    status, message = error_of(change(cluster, submit(cluster), **operation))
    assert status == 422
    assert text in message


def test_job_that_left_the_pool_is_a_conflict(cluster: Cluster) -> None:
    jobs, seen = three_jobs(cluster), revisions(cluster)
    configure(cluster, "other", PRIORITY)
    change(cluster, jobs[0], resource_pool="other")
    refused = change(cluster, jobs[2], ahead_of=jobs[0], neighbour_revision=seen[1])
    assert error_of(refused) == (
        409,
        "job 1 is no longer in pool default; read the queue again and retry",
    )


def test_position_is_the_time_of_submission_until_a_move(cluster: Cluster) -> None:
    jobs = three_jobs(cluster)
    assert queue(cluster)[0]["position"] == f"{NOW_MS}000"
    change(cluster, jobs[2], ahead_of=jobs[1])
    # The middle between two submissions with a distance of a second.
    assert queue(cluster)[1]["position"] == f"{NOW_MS + 500}000"
