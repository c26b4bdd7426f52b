"""The queue of a pool, compared with a computation without caches that covers every job."""

import random
from dataclasses import replace

import pytest

from control_plane.queries.job import JobView, describe_job, list_jobs, load_queue, ordered_jobs
from control_plane.queries.pages import PageRequest
from control_plane.queries.pool_snapshot import PoolSnapshot, read_pool
from control_plane.scheduling.schedule import wait_reasons
from control_plane.services import Services
from tests.unit.api.agent_side import Agent
from tests.unit.api.cluster import Cluster
from tests.unit.api.test_api_jobs import configure, submit

POOL = "default"
KINDS = ("fair_share", "priority", "round_robin")


def every_job(services: Services) -> list[tuple[int, str]]:
    """Return each job with the reason to wait, in the list's order, computed without caches."""

    def look_at_all(snapshot: PoolSnapshot) -> list[tuple[int, str]]:
        why = wait_reasons(
            snapshot.jobs,
            snapshot.agents,
            snapshot.settings.scheduler,
            reservation=snapshot.reservation,
        )
        return [(job.group, why.get(job.group, "")) for job in ordered_jobs(snapshot)]

    return read_pool(replace(services), POOL, look_at_all)


def every_page(services: Services, limit: int, *, reverse: bool) -> list[JobView]:
    found: list[JobView] = []
    page = PageRequest(limit, None)
    while True:
        answer = list_jobs(services, POOL, page, reverse)
        assert len(answer.items) <= limit
        found += answer.items
        if answer.next_cursor is None:
            return found
        page = PageRequest(limit, answer.next_cursor)


def change_at_random(cluster: Cluster, agent: Agent, chance: random.Random, count: int) -> int:
    """Make a random change that affects the queue; return the number of jobs created so far."""
    act = chance.choice(["submit", "submit", "pause", "take", "wait"])
    if act == "submit":
        submit(cluster, f"resources.slots_per_trial={chance.choice([1, 1, 2])}")
        return count + 1
    if act == "pause" and count:
        verb = chance.choice(["pause", "activate"])
        cluster.post(f"/experiments/{chance.randint(1, count)}/{verb}", {})
    elif act == "take":
        agent.take_work()
    else:
        # After this time, slots are reserved for the longest-waiting job.
        cluster.clock.ms += chance.choice([1_000, 700_000])
    return count


@pytest.mark.parametrize("kind", KINDS)
def test_cached_queue_equals_fresh_computation(cluster: Cluster, kind: str) -> None:
    configure(cluster, POOL, f"scheduler: {{type: {kind}}}")
    services, chance = cluster.services, random.Random(kind)
    agent, count = Agent(cluster, slots=2), 0
    for _ in range(25):
        count = change_at_random(cluster, agent, chance, count)
        expected = every_job(services)
        limit = chance.choice([1, 2, 3, 50])
        pages = every_page(services, limit, reverse=False)
        assert [(one.experiment_id, one.waits) for one in pages] == expected
        assert every_page(services, limit, reverse=True) == pages[::-1]
        assert pages == every_page(replace(services), 500, reverse=False)
        for one in pages:
            assert describe_job(services, one.experiment_id) == one
    assert len(pages) > 3


def test_reasons_are_computed_for_chosen_jobs_only(cluster: Cluster) -> None:
    for _ in range(4):
        submit(cluster)
    whole = load_queue(cluster.services, POOL)
    part = load_queue(cluster.services, POOL, lambda order: order[1:3])
    assert part.order == whole.order
    assert whole.waits.keys() == {1, 2, 3, 4}
    assert part.waits == {group: whole.waits[group] for group in (2, 3)}
