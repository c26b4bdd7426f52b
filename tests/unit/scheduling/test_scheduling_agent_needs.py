"""The needs of jobs for devices and users: the matching rules, and placement by kinds."""

import random

import pytest

from control_plane.scheduling.agent_needs import (
    DEVICES_MAX,
    AgentDevice,
    AgentKind,
    AgentNeeds,
    agent_kind,
    matches_slot_type,
    meets_needs,
    size_text,
)
from control_plane.scheduling.fitting import AgentSet
from control_plane.scheduling.model import (
    AgentCapacity,
    AllocationRequest,
    FittingPolicy,
    Job,
    SchedulerRules,
)
from control_plane.scheduling.schedule import schedule_jobs, wait_reasons

GIB = 2**30


@pytest.mark.parametrize(
    ("slot_type", "name"),
    [
        ("A10", "NVIDIA A10"),
        ("h100", "NVIDIA H100 80GB HBM3"),
        ("NVIDIA H100", "NVIDIA H100 80GB HBM3"),
        ("A100 80GB", "NVIDIA A100-SXM4-80GB"),
        ("rtx 4090", "NVIDIA GeForce RTX 4090"),
        ("RTX-4090", "NVIDIA GeForce RTX 4090"),
        ("MI300X", "AMD Instinct MI300X"),
    ],
)
def test_words_of_a_name_match(slot_type: str, name: str) -> None:
    assert matches_slot_type(AgentDevice("cuda", name), slot_type)


@pytest.mark.parametrize(
    ("slot_type", "name"),
    [
        ("A10", "NVIDIA A100-SXM4-80GB"),
        ("A10", "NVIDIA A10G"),
        ("L4", "NVIDIA L40S"),
        ("H100", "NVIDIA H200"),
        ("RTX 4090", "NVIDIA GeForce RTX 3090"),
        ("A100", ""),
        ("rocm", "NVIDIA A100-SXM4-80GB"),
        # A type of slots is never a word of a name.
        ("cpu", "AMD EPYC CPU"),
    ],
)
def test_other_names_do_not_match(slot_type: str, name: str) -> None:
    assert not matches_slot_type(AgentDevice("cuda", name), slot_type)


def test_type_of_slots_matches_without_case() -> None:
    assert matches_slot_type(AgentDevice("cuda", "Tesla T4"), "CUDA")
    assert not matches_slot_type(AgentDevice("cpu", "cuda"), "cuda")


def kind(*devices: tuple[str, int], only_user: str = "") -> AgentKind:
    slots = [(number, "cuda", "", name) for number, (name, _) in enumerate(devices)]
    return agent_kind(slots, [memory for _, memory in devices], only_user)


def test_memory_may_lack_a_tenth_of_the_nominal_size() -> None:
    # An H100 of 80 GiB reports 81559 MiB, and an L4 of 24 GiB 23034 MiB.
    assert meets_needs(kind(("H100", 81559)), AgentNeeds(slot_memory=80 * GIB))
    assert meets_needs(kind(("L4", 23034)), AgentNeeds(slot_memory=24 * GIB))
    # 0.9 * 1000 MiB is 900 MiB.
    assert meets_needs(kind(("x", 900)), AgentNeeds(slot_memory=1000 * 2**20))
    assert not meets_needs(kind(("x", 899)), AgentNeeds(slot_memory=1000 * 2**20))


def test_unknown_memory_meets_no_need_for_memory() -> None:
    assert not meets_needs(agent_kind([(0, "cuda", "u", "H100")], ()), AgentNeeds("", 1))
    assert meets_needs(agent_kind([(0, "cuda", "u", "H100")], ()), AgentNeeds("H100"))


def test_all_devices_must_meet_the_needs() -> None:
    mixed = kind(("H100", 81559), ("T400", 4096))
    assert not meets_needs(mixed, AgentNeeds("H100"))
    assert not meets_needs(mixed, AgentNeeds(slot_memory=40 * GIB))
    assert meets_needs(mixed, AgentNeeds(slot_memory=4 * GIB))


def test_agent_without_devices_meets_no_need_for_devices() -> None:
    assert not meets_needs(AgentKind(), AgentNeeds("cpu"))
    assert not meets_needs(None, AgentNeeds("cpu"))
    assert meets_needs(AgentKind(), AgentNeeds())
    assert meets_needs(None, AgentNeeds(agent_user="1001:1001"))


def test_agent_with_an_own_user_only_runs_trials_of_this_user() -> None:
    needs = AgentNeeds(agent_user="1001:1001")
    assert meets_needs(kind(("T4", 0), only_user="1001:1001"), needs)
    assert not meets_needs(kind(("T4", 0), only_user="1002:1001"), needs)
    assert meets_needs(kind(("T4", 0)), needs)
    assert meets_needs(kind(("T4", 0), only_user="1002:1001"), AgentNeeds("T4"))


def test_kind_has_different_devices_in_order() -> None:
    slots = [(0, "cuda", "u", "T4"), (1, "cuda", "v", "A10"), (2, "cuda", "w", "T4")]
    assert agent_kind(slots, (5, 6, 5)).devices == (
        AgentDevice("cuda", "A10", 6),
        AgentDevice("cuda", "T4", 5),
    )


def test_agent_with_too_many_different_devices_meets_no_needs() -> None:
    slots = [(number, "cuda", "u", f"T{number}") for number in range(DEVICES_MAX + 1)]
    assert agent_kind(slots[:-1], ()).devices
    assert agent_kind(slots, ()).devices == ()
    assert not meets_needs(agent_kind(slots, ()), AgentNeeds("cuda"))


def test_needs_are_described_for_users() -> None:
    assert AgentNeeds("H100", 40 * GIB).text == "slot_type H100 and slot_memory 40 GiB"
    assert AgentNeeds(agent_user="7:8").text == "the right to run trials as user 7:8"
    assert [size_text(size) for size in (5, 3 * 2**20, 3 * 2**29)] == [
        "5 bytes",
        "3 MiB",
        "1.5 GiB",
    ]


@pytest.mark.parametrize("heterogeneous", [False, True])
def test_refused_kinds_place_as_a_set_without_these_agents(heterogeneous: bool) -> None:
    chance = random.Random(5)
    for _ in range(300):
        agents = []
        for number in range(chance.randint(1, 7)):
            total = chance.choice([1, 2, 4, 8])
            free = chance.choice([total, chance.randint(0, total)])
            agents.append(AgentCapacity(f"a{number}", total, free, kind=chance.randrange(3)))
        refused = frozenset(chance.sample(range(3), chance.randint(1, 2)))
        fitting: FittingPolicy = "best" if chance.random() < 0.5 else "worst"
        whole = AgentSet(agents, fitting, heterogeneous)
        able = [agent for agent in agents if agent.kind not in refused]
        part = AgentSet(able, fitting, heterogeneous)
        for number in range(8):
            slots, single_agent = chance.choice([0, 1, 2, 4, 6, 8, 16]), chance.random() < 0.3
            size = (slots, single_agent, refused)
            plain = size[:2]
            assert whole.sizes.can_ever_fit(*size) == part.sizes.can_ever_fit(*plain)
            assert whole.could_fit_initially(*size) == part.could_fit_initially(*plain)
            assert whole.can_fit_now(*size) == part.can_fit_now(*plain)
            assert whole.is_ruled_out(*size) == part.is_ruled_out(*plain)
            assert whole.can_spread(*size) == part.can_spread(*plain)
            name = f"{number}.1"
            request = AllocationRequest(
                name, slots, single_agent=single_agent, refused_kinds=refused
            )
            places = whole.place_request(request)
            same = AllocationRequest(name, slots, single_agent=single_agent)
            # Agents of equal size have an order by name, so that the numbers do not matter.
            assert places == part.place_request(same)
            assert whole.count_free_slots(refused) == part.count_free_slots()
            assert whole.count_unused_slots(refused) == part.count_unused_slots()


def waiting(job: int, slots: int, refused: frozenset[int] = frozenset(), **settings: object) -> Job:
    request = AllocationRequest(f"{job}.1", slots, f"{job}", job, refused_kinds=refused)
    needs = "slot_type H100" if refused else ""
    return Job(
        job,
        job,
        pending=(request,),
        pending_slots={slots: 1},
        refused_kinds=refused,
        needs=needs,
        **settings,  # type: ignore[arg-type]
    )


FIRST = frozenset({0})


@pytest.mark.parametrize("scheduler", ["fair_share", "priority", "round_robin"])
def test_request_waits_for_an_agent_that_meets_the_needs(scheduler: str) -> None:
    rules = SchedulerRules(scheduler)  # type: ignore[arg-type]
    agents = [AgentCapacity("a", 4, 4, kind=0), AgentCapacity("b", 2, 0, kind=1)]
    jobs = [waiting(1, 2, FIRST), waiting(2, 4)]
    reasons = wait_reasons(jobs, agents, rules)
    assert reasons[1].startswith("needs 2 slots, 0 free (of the agents with slot_type H100)")
    agents[1] = AgentCapacity("b", 2, 2, kind=1)
    starts = schedule_jobs(jobs, agents, rules, 9).starts
    assert {start.request.group: start.agent for start in starts} == {1: "b", 2: "a"}


def test_reasons_name_needs_that_no_agent_meets_and_sizes_that_would_fit() -> None:
    rules = SchedulerRules()
    alone = [AgentCapacity("a", 4, 4)]
    assert wait_reasons([waiting(1, 1, FIRST)], alone, rules) == {
        1: "no agent of the pool meets the needs: slot_type H100"
    }
    agents = [*alone, AgentCapacity("b", 2, 2, kind=1)]
    assert wait_reasons([waiting(1, 4, FIRST)], agents, rules)[1] == (
        "needs 4 slots: agents have 2; it would fit with 2 (of the agents with slot_type H100)"
    )


def test_reason_names_agents_that_drain() -> None:
    draining = AgentCapacity("b", 2, 0, kind=1, draining=True)
    reasons = wait_reasons(
        [waiting(1, 1, FIRST)], [AgentCapacity("a", 4, 4), draining], SchedulerRules()
    )
    assert reasons[1] == "the agents that meet the needs take no new work: slot_type H100"


PRIORITY = SchedulerRules("priority")
SECOND = frozenset({1})


def test_waiting_request_holds_back_lower_priorities_on_its_devices_only() -> None:
    agents = [AgentCapacity("a", 2, 2, kind=0), AgentCapacity("b", 2, 0, kind=1)]
    first = waiting(1, 2, FIRST, priority=10)
    started = schedule_jobs([first, waiting(2, 1, priority=50)], agents, PRIORITY, 9).starts
    assert [(start.request.group, start.agent) for start in started] == [(2, "a")]
    assert started[0].request.refused_kinds == frozenset()
    # Job 1 may need slots of both agents, so that job 2 must wait.
    agents[1] = AgentCapacity("b", 2, 1, kind=1)
    anywhere = waiting(1, 4, priority=10)
    assert schedule_jobs([anywhere, waiting(2, 1, priority=50)], agents, PRIORITY, 9).starts == ()


def test_lower_priority_takes_no_free_slot_of_a_device_that_a_request_waits_for() -> None:
    agents = [AgentCapacity("a", 2, 2, kind=0), AgentCapacity("b", 2, 1, kind=1)]
    jobs = [
        waiting(1, 2, FIRST, priority=10),
        waiting(2, 1, FIRST, priority=50),
        waiting(3, 2, priority=60),
        waiting(4, 1, SECOND, priority=70),
    ]
    # Job 2 waits for device 1, too. Job 3 starts on device 0, which then has no room for job 4.
    started = schedule_jobs(jobs, agents, PRIORITY, 9).starts
    assert [(start.request.group, start.agent) for start in started] == [(3, "a")]


def test_waiting_requests_for_all_devices_hold_back_everything() -> None:
    agents = [AgentCapacity("a", 2, 1, kind=0), AgentCapacity("b", 2, 1, kind=1)]
    jobs = [
        waiting(1, 2, FIRST, priority=10),
        waiting(2, 2, SECOND, priority=10),
        waiting(3, 1, priority=50),
    ]
    assert schedule_jobs(jobs, agents, PRIORITY, 9).starts == ()
    assert wait_reasons(jobs, agents, PRIORITY)[3] == "behind job 1"
