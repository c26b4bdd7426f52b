"""Commands on the job queue and on resource pools, against a fake that records requests."""

import json
import re
from pathlib import Path

import pytest

from detcloud.client import Client
from tests.unit.cli.conftest import Detcloud
from tests.unit.client.fake_cluster import TOKEN, FakeCluster
from tests.unit.client.fake_queue import fake_pool


def test_queue_is_printed_as_an_ordered_table(fake: FakeCluster, detcloud: Detcloud) -> None:
    lines = detcloud("job", "list").out.splitlines()
    cells = [[cell.strip() for cell in line.split("|")] for line in lines]
    titles = "#,ID,Type,Job Name,Priority,Submitted,Slots (acquired/needed),Status,User"
    assert cells[0][:9] == titles.split(",")
    submitted = "2022-01-01 00:01:00"
    first = f"0,73853c5c,experiment,first_job,42,{submitted},1/1,running,user1"
    assert cells[2][:9] == first.split(",")
    assert cells[2][9:] == ["1", "Runs on 1 slot."]
    # The job of the fake waits since 2022.
    assert re.fullmatch(r"Waits for \d+ d \d+ h: needs 1 slot, 0 free\.", cells[3][10])


def test_types_and_states_have_the_original_names_on_request(
    fake: FakeCluster, detcloud: Detcloud
) -> None:
    lines = detcloud("job", "list", "--det").out.splitlines()
    row, waiting = ([cell.strip() for cell in line.split("|")] for line in lines[2:])
    assert (row[2], row[7]) == ("TYPE_EXPERIMENT", "STATE_SCHEDULED")
    assert waiting[9:] == ["2", "N/A", "needs 1 slot, 0 free"]


def test_a_fair_share_queue_shows_weights_without_places(
    fake: FakeCluster, detcloud: Detcloud
) -> None:
    for job in fake.queue.jobs:
        job.update(scheduler="fair_share", jobs_ahead=None)
    lines = detcloud("j", "ls", "-p", "gpus", "--csv").out.splitlines()
    assert lines[0].startswith("#,ID,Type,Job Name,Weight,")
    assert lines[1].startswith("N/A,73853c5c,TYPE_EXPERIMENT,first_job,1.0,")


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--reverse"], ["second_job", "first_job"]),
        (["--limit", "1"], ["first_job"]),
        (["--offset", "1"], ["second_job"]),
        (["-p", "default"], []),
    ],
)
def test_a_part_of_the_queue_is_listed(
    fake: FakeCluster, detcloud: Detcloud, words: list[str], names: list[str]
) -> None:
    listed = json.loads(detcloud("job", "list", "--json", *words).out)
    assert [job["name"] for job in listed] == names


@pytest.mark.parametrize(
    ("words", "body", "message"),
    [
        (["--priority", "10"], {"priority": 10}, "job 73853c5c (first_job) has priority 10"),
        (["-w", "2.5"], {"weight": 2.5}, "job 73853c5c (first_job) has weight 2.5"),
        (
            ["--resource-pool", "a100"],
            {"resource_pool": "a100"},
            "job 73853c5c (first_job) is in pool a100",
        ),
        (
            ["--ahead-of", "0d71"],
            {"ahead_of": "0d71"},
            "job 73853c5c (first_job) is at place 0 in the queue of pool gpus",
        ),
        (
            ["--ahead-of", "73853c"],
            {"ahead_of": "73853c"},
            "job 73853c5c (first_job) stays at place 0: a job cannot be moved ahead of itself",
        ),
        (
            ["--behind-of", "2"],
            {"behind_of": "2"},
            "job 73853c5c (first_job) is at place 0 in the queue of pool gpus",
        ),
    ],
)
def test_job_update_changes_a_job(
    fake: FakeCluster, detcloud: Detcloud, words: list[str], body: dict[str, object], message: str
) -> None:
    ended = detcloud("job", "update", "73853c5c", *words)
    assert (ended.code, ended.out) == (0, f"{message}\n")
    (request,) = fake.queue.asked
    assert request == ("/jobs/73853c5c-0000-4000-8000-000000000000", body)


@pytest.mark.parametrize(
    "words", [[], ["--priority", "1", "--weight", "2"], ["--priority", "x"], ["--weight", "nan"]]
)
def test_job_update_requires_exactly_one_change(
    fake: FakeCluster, detcloud: Detcloud, words: list[str]
) -> None:
    assert detcloud("job", "update", "1", *words).code == 2


def test_a_batch_is_one_request_in_order(fake: FakeCluster, detcloud: Detcloud) -> None:
    ended = detcloud("job", "update-batch", "1.priority=1", "2.resource-pool=a.b", "2.ahead_of=1")
    assert (ended.code, len(ended.out.splitlines())) == (0, 3)
    (request,) = fake.queue.asked
    assert request == (
        "/jobs",
        {
            "operations": [
                {"job_id": "1", "priority": 1},
                {"job_id": "2", "resource_pool": "a.b"},
                {"job_id": "2", "ahead_of": "1"},
            ]
        },
    )


@pytest.mark.parametrize(
    ("operation", "word"),
    [
        ("1.priority", "invalid format"),
        ("priority=1", "invalid format"),
        ("1.a.priority=1", "invalid format"),
        ("1.speed=1", "invalid operation"),
        ("1.priority=x", "not a priority"),
    ],
)
def test_malformed_operation_is_refused(
    fake: FakeCluster, detcloud: Detcloud, operation: str, word: str
) -> None:
    ended = detcloud("job", "update-batch", operation)
    assert ended.code == 2
    assert word in ended.err


def test_errors_of_the_cluster_are_printed(fake: FakeCluster, detcloud: Detcloud) -> None:
    ended = detcloud("job", "update-batch", "1.priority=100")
    assert ended.code == 3
    assert ended.err.startswith("error: priority must be between 1 and 99, not 100")


def test_pools_are_listed_and_described(fake: FakeCluster, detcloud: Detcloud) -> None:
    listed = detcloud("resource-pool", "list").out
    assert " gpus    | priority, preemptive | OPEN  |     2 |    1 |" in listed
    described = detcloud("rp", "describe", "gpus").out.splitlines()
    assert "Default for       compute" in described
    assert described[-1].startswith(" local-1  | process | ")
    assert json.loads(detcloud("rp", "describe", "gpus", "--json").out)["jobs"] == 2


def test_pool_is_described_with_its_replacements(fake: FakeCluster, detcloud: Detcloud) -> None:
    phases = [
        {"phase": "total", "count": 2, "median_ms": 95_000, "p90_ms": 240_000},
        {"phase": "first_step", "count": 2, "median_ms": 50, "p90_ms": 60},
    ]
    cause = {"cause": "notice", "count": 2, "unmeasured": 0, "phases": phases}
    fake.queue.replacements["gpus"] = {
        "since_ms": 1_000,
        "causes": [cause],
        "is_cut": True,
        "latest": [],
    }
    described = detcloud("rp", "describe", "gpus")
    assert described.out.splitlines()[-5:] == [
        "2 replacements after a notice, ended in the last 30 days",
        " Phase      | Count | Median | 90 % within",
        "------------+-------+--------+-------------",
        " total      |     2 | 95 s   | 4 min",
        " first step |     2 | 0.05 s | 0.06 s",
    ]
    assert described.err == (
        "note: there were more; the sums cover only the replacements since "
        "1970-01-01 00:00:01+0000\n"
    )
    shown = json.loads(detcloud("rp", "describe", "gpus", "--json").out)["replacements"]
    assert shown["causes"] == [cause]


def test_warnings_about_a_changed_pool_are_printed(fake: FakeCluster, detcloud: Detcloud) -> None:
    fake.queue.pools["gpus"]["warnings"] = ["pool gpus: provider.instance_type is not set"]
    ended = detcloud("rp", "set", "gpus", "--config", "provider.type=aws")
    assert (ended.code, ended.out) == (0, "pool gpus was set\n")
    assert "pool gpus: provider.instance_type is not set" in ended.err


def test_pools_are_created_changed_drained_and_removed(
    fake: FakeCluster, detcloud: Detcloud, tmp_path: Path
) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text("scheduler: {type: priority}\n")
    assert detcloud("rp", "create", "new", str(file)).out == "pool new was created\n"
    assert detcloud("rp", "create", "new").code == 1
    assert detcloud("rp", "set", "new", "--config", "budget=5").out == "pool new was set\n"
    assert detcloud("rp", "set", "new").code == 1
    assert detcloud("rp", "set", "nowhere", "--config", "budget=5").code == 3
    assert detcloud("rp", "drain", "new").out.startswith("pool new starts no more trials; 1 trial ")
    assert fake.queue.pools["new"]["state"] == "DRAINING"
    assert detcloud("rp", "undrain", "new").out == "pool new starts trials again\n"
    assert fake.queue.asked[:2] == [
        ("PUT /resource-pools/new", {"config": file.read_text(), "overrides": []}),
        ("PUT /resource-pools/new", {"config": None, "overrides": ["budget=5"]}),
    ]
    assert detcloud("rp", "remove", "gpus", "--yes").out == "pool gpus was removed\n"
    assert detcloud("rp", "remove", "default", "--yes").code == 3


def test_apply_prints_changes_and_problems_with_lines(
    fake: FakeCluster, detcloud: Detcloud, tmp_path: Path
) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text("resource_pools: [{pool_name: gpus}]")
    applied = detcloud("cluster", "apply", str(file))
    assert applied.out.splitlines() == [
        "the cluster changed: resource_manager",
        "pool gpus changed: scheduler.type",
        "pool default unchanged",
        "pool old removed",
    ]
    assert applied.err == "warning: pool gpus: agent_reattach_enabled is not used\n"
    dry = detcloud("cluster", "apply", str(file), "--dry-run").out.splitlines()
    assert dry[1] == "pool gpus would be changed: scheduler.type"
    file.write_text("bad: 1")
    ended = detcloud("cluster", "apply", str(file))
    assert ended.code == 3
    assert f"{file}:1: bad: is not a known field" in ended.err


def test_weight_and_priority_of_an_experiment_are_set(
    ended_cluster: FakeCluster, detcloud: Detcloud
) -> None:
    assert detcloud("e", "set", "weight", "1", "2").out == "experiment 1 has weight 2\n"
    assert detcloud("e", "set", "priority", "1", "7").out == "experiment 1 has priority 7\n"
    assert (ended_cluster.experiments[0]["weight"], ended_cluster.experiments[0]["priority"]) == (
        2.0,
        7,
    )


def test_warnings_of_a_submission_are_printed(
    fake: FakeCluster, detcloud: Detcloud, config: Path, model_dir: Path
) -> None:
    fake.warnings = ["resources.weight has no effect"]
    made = detcloud("create", str(config), str(model_dir))
    assert (made.code, made.out) == (0, "Created experiment 1\n")
    assert "warning: resources.weight has no effect\n" in made.err


def test_a_job_is_changed_from_python(fake: FakeCluster) -> None:
    with Client(fake.url, TOKEN) as client:
        first, second = client.jobs()
        assert repr(first) == f"Job({first.job_id!r})"
        first.set_priority(5)
        first.set_weight(2)
        first.move_to("other")
        second.move_ahead_of(first)
        second.move_behind("1")
        assert (first.priority, first.resource_pool) == (5, "other")
        pool = client.resource_pool("gpus")
        pool.drain()
        pool.set(overrides=["description=x"])
        assert client.configure({"resource_pools": []}, dry_run=True)["dry_run"]
    bodies = [body for path, body in fake.queue.asked if path.startswith("/jobs")]
    moves = [{"ahead_of": first.job_id}, {"behind_of": "1"}]
    assert bodies == [{"priority": 5}, {"weight": 2}, {"resource_pool": "other"}, *moves]


def test_pool_list_shows_offerings_with_prices(fake: FakeCluster, detcloud: Detcloud) -> None:
    prices = {"aws": (0.3, 1.0), "gcp": (0.25, 0.0, 2.0, 3.0)}
    for name, listed in prices.items():
        offerings = [
            {"instance_type": f"{name}-gpu", "zone": "a", "market": "spot", "price_per_hour": price}
            for price in listed
        ]
        fake.queue.pools[name] = {**fake_pool(name), "offerings": offerings}
    listed_text = detcloud("resource-pool", "list", "--csv").out
    assert "aws-gpu a spot $0.3000, aws-gpu a spot $1.00" in listed_text
    assert "gcp-gpu a spot $0.2500, gcp-gpu a spot (no price), gcp-gpu a spot $2.00, 1 more" in (
        listed_text
    )


def test_queue_shows_preferred_pools_of_jobs(fake: FakeCluster, detcloud: Detcloud) -> None:
    assert "Pools" not in detcloud("job", "list").out
    moved = {"preferred_pools": ["aws", "gpus"], "pool_move_reason": "no capacity"}
    fake.queue.jobs[1].update(moved)
    first, second = detcloud("job", "list", "--csv").out.splitlines()[1:]
    assert first.endswith(",N/A,N/A,N/A")
    # The job has waited since 2022-01-01 00:01:01 UTC.
    assert "needs 1 slot, 0 free (since 2022-01-01 00:01:01)" in second
    assert second.endswith(',"aws, gpus",no capacity')


@pytest.mark.parametrize(
    ("words", "message", "command"),
    [
        ("job update 99999999 --priority 1", "job 99999999 not found", "job list"),
        ("resource-pool drain nope", "Pool nope not found", "resource-pool list"),
    ],
)
def test_not_found_error_names_the_matching_list_command(
    fake: FakeCluster, detcloud: Detcloud, words: str, message: str, command: str
) -> None:
    assert detcloud(*words.split()).err == (
        f"error: {message}\nhint: `detcloud {command}` shows what exists\n"
    )
