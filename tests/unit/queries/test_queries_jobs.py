"""The queue of a pool, page by page, against a plain form that looks at every job."""

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
    """Each job in the order of the list and why it waits, from a snapshot and nothing kept."""

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
    """Change something that moves the queue; returns how many jobs there were so far."""
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
        # By then slots are held for whoever has waited since.
        cluster.clock.ms += chance.choice([1_000, 700_000])
    return count


@pytest.mark.parametrize("kind", KINDS)
def test_pages_of_a_queue_that_changes_say_what_a_look_at_all_of_it_says(
    cluster: Cluster, kind: str
) -> None:
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


def test_reasons_are_found_for_the_chosen_jobs_alone(cluster: Cluster) -> None:
    for _ in range(4):
        submit(cluster)
    whole = load_queue(cluster.services, POOL)
    part = load_queue(cluster.services, POOL, lambda order: order[1:3])
    assert part.order == whole.order
    assert whole.waits.keys() == {1, 2, 3, 4}
    assert part.waits == {group: whole.waits[group] for group in (2, 3)}
