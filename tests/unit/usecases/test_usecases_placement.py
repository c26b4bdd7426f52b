"""Placement of submitted experiments: the choice of the pool, refusals and warnings."""

from typing import Any

import pytest

from control_plane.access.principals import Role
from control_plane.actors import addresses
from control_plane.actors.messages.agent import AgentEnrolled
from control_plane.actors.messages.pool import PoolConfigured, PoolSettings
from control_plane.actors.pool_moves import PoolMoves, PoolPreferences
from control_plane.fleet.records import InstanceRow, InstanceState, Market, Offering
from control_plane.fleet.rows import encode_row, instance_key
from control_plane.state.table import Expect, Put
from tests.unit.api.cluster import TOKENS, V1, Cluster
from tests.unit.api.exchange import Answer, call

CONFIG = """
name: digits
entrypoint: python train.py
searcher: {name: single, metric: loss, max_length: {batches: 10}}
"""


def configure(cluster: Cluster, path: str, config: str) -> None:
    token, content = TOKENS[Role.ADMIN], {"config": config}
    answer = call(cluster.app, "PUT", f"{V1}/{path}", token=token, content=content)
    assert answer.status == 200, answer.body


def enrol(
    cluster: Cluster,
    name: str,
    slots: int,
    label: str = "",
    pool: str = "default",
    runtime: str = "",
) -> None:
    listed = tuple((n, "cpu", f"cpu-{n}", "CPU") for n in range(slots))
    message = AgentEnrolled(
        agent=name, pool=pool, slots=listed, version="1", label=label, runtime=runtime
    )
    cluster.services.engine.execute_command(addresses.agent(name), message)


def submit(cluster: Cluster, **resources: Any) -> Answer:
    return cluster.create(CONFIG, overrides=[f"resources.{k}={v}" for k, v in resources.items()])


def problem(answer: Answer) -> tuple[str, str]:
    assert (answer.status, answer.code) == (422, "invalid"), answer.body
    (detail,) = answer.json["error"]["details"]
    return detail["path"], detail["message"]


def test_unknown_pool_is_refused_with_existing_pools(cluster: Cluster) -> None:
    answer = submit(cluster, resource_pool="gpus")
    assert problem(answer) == ("resources.resource_pool", "resource pool gpus does not exist")
    assert answer.json["error"]["details"][0]["hint"] == "existing pools: default"


def test_slots_choose_the_default_pool(cluster: Cluster) -> None:
    text = """
resource_manager: {default_compute_resource_pool: big, default_aux_resource_pool: small}
resource_pools: [{pool_name: big}, {pool_name: small}]
"""
    configure(cluster, "cluster/configuration", text)
    assert submit(cluster).json["resource_pool"] == "big"
    assert submit(cluster, slots_per_trial=0).json["resource_pool"] == "small"
    assert submit(cluster, slots_per_trial=0, resource_pool="big").json["resource_pool"] == "big"


@pytest.mark.parametrize("slots", [1, 4, 8, 16, 24])
def test_accepts_slots_that_agents_can_hold(cluster: Cluster, slots: int) -> None:
    for number in range(3):
        enrol(cluster, f"node-{number}", 8)
    assert submit(cluster, slots_per_trial=slots).status == 201


def test_rejects_slots_with_sizes_that_would_fit(
    cluster: Cluster,
) -> None:
    for number in range(3):
        enrol(cluster, f"node-{number}", 8)
    path, message = problem(submit(cluster, slots_per_trial=12))
    assert path == "resources.slots_per_trial"
    # An agent has up to 8 slots; above 8, only whole agents count: 16 and 24.
    assert message == (
        "no trial could ever start in pool default: it needs 12 slots: agents have 8;"
        " it would fit with 8, 16 or 24; the pool has 3 agents with 8 CPU"
    )
    assert problem(submit(cluster, slots_per_trial=32))[0] == "resources.slots_per_trial"


def test_single_node_experiment_gets_no_gang(cluster: Cluster) -> None:
    enrol(cluster, "one", 8)
    enrol(cluster, "two", 8)
    _, message = problem(submit(cluster, slots_per_trial=16, is_single_node="true"))
    assert "needs 16 slots on one agent: agents have 8; it would fit with 8" in message


def test_heterogeneous_pool_accepts_gangs_of_different_sizes(cluster: Cluster) -> None:
    enrol(cluster, "big", 8)
    enrol(cluster, "small", 4)
    assert problem(submit(cluster, slots_per_trial=12))[0] == "resources.slots_per_trial"
    configure(cluster, "resource-pools/default", "scheduler: {allow_heterogeneous_fits: true}")
    assert submit(cluster, slots_per_trial=12).status == 201


def test_only_agents_with_the_label_count(cluster: Cluster) -> None:
    enrol(cluster, "plain", 8)
    enrol(cluster, "marked", 2, "fast")
    assert submit(cluster, agent_label="fast", slots_per_trial=2).status == 201
    assert problem(submit(cluster, agent_label="fast", slots_per_trial=4))[0] == (
        "resources.slots_per_trial"
    )
    path, message = problem(submit(cluster, agent_label="slow"))
    assert path == "resources.agent_label"
    assert message == "no agent of pool default has the label 'slow'; known: fast"


def test_pool_without_agents_accepts_any_slots(cluster: Cluster) -> None:
    assert submit(cluster, slots_per_trial=1000).status == 201


def test_launchable_instances_count(cluster_with_local: Cluster) -> None:
    cluster = cluster_with_local
    provider = "{type: local, max_instances: 3, instance_slots: 4}"
    configure(cluster, "resource-pools/default", f"provider: {provider}")
    for slots, status in ((4, 201), (12, 201), (6, 422), (16, 422)):
        assert submit(cluster, slots_per_trial=slots).status == status, slots


def test_instances_of_different_sizes_form_no_gang(cluster_with_local: Cluster) -> None:
    # A trial's instances are launched with equal sizes, and present instances may end.
    cluster = cluster_with_local
    provider = "{type: local, max_instances: 3, instance_slots: 4}"
    rules = "scheduler: {allow_heterogeneous_fits: true}"
    configure(cluster, "resource-pools/default", f"provider: {provider}\n{rules}")
    offering = Offering("local", "local", "", Market.ON_DEMAND, 4)
    row = InstanceRow("i-1", "default", offering, InstanceState.RUNNING, 0, "intent")
    put = Put(instance_key(row), 1, encode_row(row), Expect.ABSENT)
    cluster.services.table.commit((put,))
    enrol(cluster, "fixed-1", 6)
    enrol(cluster, "i-1", 4)
    assert problem(submit(cluster, slots_per_trial=10))[0] == "resources.slots_per_trial"
    enrol(cluster, "fixed-2", 4)
    assert submit(cluster, slots_per_trial=10).status == 201


def test_zero_slot_trials_require_aux_places(cluster: Cluster) -> None:
    configure(cluster, "resource-pools/default", "max_aux_containers_per_agent: 0")
    path, message = problem(submit(cluster, slots_per_trial=0))
    assert path == "resources.slots_per_trial"
    assert "accepts no zero-slot trials" in message


@pytest.mark.parametrize(
    ("scheduler", "resources", "warning"),
    [
        ("fair_share", {"priority": 5}, "resources.priority has no effect in pool default, which"),
        (
            "priority",
            {"weight": 2},
            "resources.weight has no effect in pool default, which serves jobs by",
        ),
        (
            "round_robin",
            {"weight": 2},
            "resources.weight has no effect in pool default, which takes",
        ),
        (
            "fair_share",
            {"max_cost": 5},
            "resources.max_cost has no effect in pool default, whose agents are started by hand",
        ),
        (
            "fair_share",
            {"deadline": "6h"},
            "resources.deadline has no effect in pool default, whose agents are started by hand",
        ),
    ],
)
def test_warns_of_settings_of_inactive_schedulers(
    cluster: Cluster, scheduler: str, resources: dict[str, Any], warning: str
) -> None:
    configure(cluster, "resource-pools/default", f"scheduler: {{type: {scheduler}}}")
    (warned,) = submit(cluster, **resources).json["warnings"]
    assert warned.startswith(warning)
    overrides = [f"resources.{name}={value}" for name, value in resources.items()]
    checked = cluster.create(CONFIG, overrides=overrides, validate_only=True).json
    assert checked["warnings"] == [warned]


@pytest.mark.parametrize(
    ("scheduler", "resources"),
    [("fair_share", {"weight": 2}), ("priority", {"priority": 5}), ("round_robin", {})],
)
def test_effective_settings_cause_no_warning(
    cluster: Cluster, scheduler: str, resources: dict[str, Any]
) -> None:
    configure(cluster, "resource-pools/default", f"scheduler: {{type: {scheduler}}}")
    assert submit(cluster, **resources).json["warnings"] == []


def test_warns_of_container_settings_without_containers(
    cluster: Cluster,
) -> None:
    overrides = ["environment.image=org/mine:1", "resources.shm_size=1gb"]

    def warnings(*more: str) -> list[str]:
        answer = cluster.create(CONFIG, overrides=[*overrides, *more], validate_only=True)
        return list(answer.json["warnings"])

    # First the pool has no agent, then an agent that reports no runtime.
    assert warnings() == []
    enrol(cluster, "labelled", 1, label="old")
    assert warnings("resources.agent_label=old") == []
    enrol(cluster, "first", 2, runtime="process")
    reason = "agents of pool default run trials as processes"
    told = [
        f"image org/mine:1 is not used: {reason}",
        f"resources.shm_size is not used: {reason}",
    ]
    assert warnings() == told
    assert cluster.create(CONFIG, overrides=overrides).json["warnings"] == told
    # If any agent has containers, the settings may take effect.
    enrol(cluster, "second", 2, runtime="docker")
    assert warnings() == []


def test_rejects_move_to_pool_without_fitting_agents(cluster: Cluster) -> None:
    enrol(cluster, "big", 8)
    configure(cluster, "resource-pools/other", "{}")
    enrol(cluster, "small", 2, pool="other")
    submit(cluster, slots_per_trial=8)
    path, content = f"{V1}/jobs/1", {"resource_pool": "other"}
    answer = call(cluster.app, "PATCH", path, token=TOKENS[Role.USER], content=content)
    assert problem(answer)[0] == "resource_pool"


INSTANCES = "provider: {type: aws, instance_type: m5.large, cpu_slots_allowed: true"
MOUNT = "bind_mounts=[{{host_path: {0}, container_path: d}}]"
DEVICE = "resources.devices=[{{host_path: {0}, container_path: /dev/x}}]"
LAYER = "data_layer={{host_storage_path: {0}, container_storage_path: /d}}"
STORAGE = "checkpoint_storage={{type: shared_fs, host_path: {0}}}"


@pytest.mark.parametrize(
    ("override", "place"),
    [
        (MOUNT, "bind_mounts[0].host_path"),
        (DEVICE, "resources.devices[0].host_path"),
        (STORAGE, "checkpoint_storage.host_path"),
        (LAYER, "data_layer.host_storage_path"),
    ],
)
def test_rejects_mounts_that_the_pool_does_not_allow(
    cluster_with_aws: Cluster, override: str, place: str
) -> None:
    cluster = cluster_with_aws
    configure(cluster, "resource-pools/default", INSTANCES + "}")
    answer = cluster.create(CONFIG, overrides=[override.format("/mnt/data")])
    text = "/mnt/data may not be mounted by trials in pool default: nothing"
    assert problem(answer) == (place, text)
    configure(cluster, "resource-pools/default", INSTANCES + ", allowed_mounts: [/mnt, /dev/fuse]}")
    for path, status in (
        ("/mnt/data", 201),
        ("/dev/fuse", 201),
        ("/mnt/../home/ubuntu", 422),
        ("/mntdata", 422),
        ("/", 422),
    ):
        assert cluster.create(CONFIG, overrides=[override.format(path)]).status == status, path


def test_rejects_move_to_pool_without_allowed_mounts(cluster_with_aws: Cluster) -> None:
    cluster = cluster_with_aws
    configure(cluster, "resource-pools/instances", INSTANCES + "}")
    assert cluster.create(CONFIG, overrides=[MOUNT.format("/mnt")]).status == 201
    path, content = f"{V1}/jobs/1", {"resource_pool": "instances"}
    answer = call(cluster.app, "PATCH", path, token=TOKENS[Role.USER], content=content)
    text = "/mnt may not be mounted by trials in pool instances: nothing"
    assert problem(answer) == ("resource_pool", text)


TWO_CLOUDS = """
resource_manager: {default_compute_resource_pool: first, default_aux_resource_pool: first}
resource_pools: [{pool_name: first}, {pool_name: second}]
"""


def submit_to(cluster: Cluster, pools: list[str], **resources: Any) -> Answer:
    return submit(cluster, resource_pool=str(pools).replace("'", '"'), **resources)


def test_job_with_several_pools_starts_in_the_first(cluster: Cluster) -> None:
    configure(cluster, "cluster/configuration", TWO_CLOUDS)
    enrol(cluster, "node", 1, pool="second")
    answer = submit_to(cluster, ["second", "first"], pool_patience="90s")
    assert answer.status == 201, answer.body
    assert answer.json["resource_pool"] == "second"
    assert answer.json["preferred_pools"] == ["second", "first"]
    shown = cluster.get(f"/experiments/{answer.json['id']}").json["config"]["resources"]
    assert (shown["resource_pool"], shown["pool_patience"]) == (["second", "first"], "1m30s")
    loaded = cluster.services.experiments.read_experiment(answer.json["id"])
    assert loaded is not None
    state, definition = loaded
    assert state.pool_moves == PoolMoves()
    assert definition.pools == PoolPreferences(("second", "first"), 90_000)


def test_list_of_one_pool_equals_a_single_name(cluster: Cluster) -> None:
    configure(cluster, "cluster/configuration", TWO_CLOUDS)
    for answer in (submit(cluster, resource_pool="second"), submit_to(cluster, ["second"])):
        assert (answer.json["resource_pool"], answer.json["preferred_pools"]) == ("second", [])
        shown = cluster.get(f"/experiments/{answer.json['id']}").json["config"]["resources"]
        assert shown["resource_pool"] == "second"


def test_rejects_unknown_or_draining_pool_in_list(cluster: Cluster) -> None:
    configure(cluster, "cluster/configuration", TWO_CLOUDS)
    answer = submit_to(cluster, ["first", "third"])
    message = "resource pool third does not exist"
    assert problem(answer) == ("resources.resource_pool[1]", message)
    settings = PoolSettings(draining=True)
    configured = PoolConfigured("second", settings)
    cluster.services.engine.execute_command(addresses.pool("second"), configured)
    message = "pool second is draining and takes no new work"
    assert problem(submit_to(cluster, ["first", "second"])) == (
        "resources.resource_pool[1]",
        message,
    )


def test_rejects_pool_in_list_that_cannot_hold_a_trial(cluster: Cluster) -> None:
    configure(cluster, "cluster/configuration", TWO_CLOUDS)
    enrol(cluster, "big", 8, pool="first")
    enrol(cluster, "small", 2, pool="second")
    enrol(cluster, "marked", 2, "fast", pool="first")
    assert submit_to(cluster, ["first", "second"], slots_per_trial=2).status == 201
    path, message = problem(submit_to(cluster, ["first", "second"], slots_per_trial=4))
    assert path == "resources.resource_pool[1]"
    assert message.startswith("no trial could ever start in pool second")
    path, _ = problem(submit_to(cluster, ["second", "first"], slots_per_trial=4))
    assert path == "resources.resource_pool[0]"
    path, message = problem(submit_to(cluster, ["first", "second"], agent_label="fast"))
    assert path == "resources.resource_pool[1]"
    assert message == "no agent of pool second has the label 'fast'; known: none"


@pytest.mark.parametrize(
    ("pools", "path", "message"),
    [
        ("[]", "", "must have 1 to 16 names, not 0"),
        ("[a, a]", "[1]", 'names pool "a" twice'),
        ("[a, '']", "[1]", 'must be the name of a pool, not ""'),
        ("[a, 3]", "[1]", "must be the name of a pool, not 3"),
        ("{a: 1}", "", "must be the name of a pool or a list of names, not a map"),
    ],
)
def test_rejects_invalid_list_of_pools(
    cluster: Cluster, pools: str, path: str, message: str
) -> None:
    refusal = problem(submit(cluster, resource_pool=pools))
    assert refusal == (f"resources.resource_pool{path}", message)


def test_warnings_cover_all_pools(cluster: Cluster) -> None:
    configure(cluster, "cluster/configuration", TWO_CLOUDS)
    warnings = submit_to(cluster, ["first", "second"], priority=5).json["warnings"]
    assert [text.split(",")[0] for text in warnings] == [
        f"resources.priority has no effect in pool {name}" for name in ("first", "second")
    ]


def test_user_move_ends_automatic_moves(cluster: Cluster) -> None:
    configure(cluster, "cluster/configuration", TWO_CLOUDS)
    number = submit_to(cluster, ["first", "second"]).json["id"]
    # Neither pool has an agent: the job was in both pools and waits in the first again.
    job, shown = (cluster.get(f"/{noun}/{number}").json for noun in ("jobs", "experiments"))
    assert job["preferred_pools"] == shown["preferred_pools"] == ["first", "second"]
    for view in (job, shown):
        assert view["resource_pool"] == "first"
        assert view["waits_since_ms"] == view["pool_moved_ms"] == cluster.services.now_ms()
        assert view["pool_move_reason"] == "pool second has no agents and launches none"
    content, token = {"resource_pool": "second"}, TOKENS[Role.USER]
    answer = call(cluster.app, "PATCH", f"{V1}/jobs/{number}", token=token, content=content)
    assert answer.status == 200, answer.body
    assert cluster.get(f"/jobs/{number}").json["preferred_pools"] == []
    events = cluster.get(f"/experiments/{number}/history").json["items"]
    why = "pool first has no agents and launches none"
    sentence = f"can move from resource pool first to the next one: {why}"
    assert sentence in [event["text"] for event in events]


def test_command_error_names_the_setting_of_commands(cluster: Cluster) -> None:
    enrol(cluster, "one", 2)
    answer = cluster.create("entrypoint: [echo]", kind="command", overrides=["resources.slots=5"])
    assert problem(answer) == (
        "resources.slots",
        "could never start in pool default: it needs 5 slots on one agent: agents have 2; it would "
        "fit with 2; the pool has 1 agent with 2 CPU",
    )
    assert not answer.json["error"]["details"][0].get("hint")


def test_error_names_the_machines_of_the_pool(cluster: Cluster) -> None:
    for number, names in enumerate((["A100"] * 4, ["A100"] * 4, ["RTX 4090", "T4"])):
        slots = [
            {"id": place, "type": "cuda", "uuid": f"GPU-{number}-{place}", "name": name}
            for place, name in enumerate(names)
        ]
        body = {"name": f"m{number}", "resource_pool": "default", "slots": slots, "version": "1"}
        path, token = f"{V1}/agents", TOKENS[Role.JOIN]
        assert call(cluster.app, "POST", path, token=token, content=body).status == 200
    _, message = problem(submit(cluster, slots_per_trial=99))
    assert message.endswith("; the pool has 2 agents with 4 A100, 1 agent with 1 RTX 4090 and 1 T4")


def enrol_gpus(cluster: Cluster, name: str, device: str, memory_mib: int, slots: int = 2) -> None:
    listed = tuple((n, "cuda", f"GPU-{name}-{n}", device) for n in range(slots))
    message = AgentEnrolled(name, "default", listed, "1", memory_mib=(memory_mib,) * slots)
    cluster.services.engine.execute_command(addresses.agent(name), message)


def test_device_that_no_agent_has_is_refused(cluster: Cluster) -> None:
    enrol_gpus(cluster, "a", "NVIDIA A100-SXM4-80GB", 81920)
    answer = submit(cluster, slot_type="H100")
    path, message = problem(answer)
    assert path == "resources.slot_type"
    assert message == (
        "no agent of pool default has slot_type H100; "
        "the pool has 1 agent with 2 NVIDIA A100-SXM4-80GB"
    )
    assert submit(cluster, slot_type="a100").status == 201
    assert submit(cluster, slot_type="cuda", slot_memory="80gb").status == 201
    path, message = problem(submit(cluster, slot_memory="100 GiB"))
    assert (path, message.split(";")[0]) == (
        "resources.slot_memory",
        "no agent of pool default has slot_memory 100 GiB",
    )


def test_slots_are_counted_on_agents_with_the_device(cluster: Cluster) -> None:
    enrol_gpus(cluster, "a", "NVIDIA A100-SXM4-80GB", 81920, slots=8)
    enrol_gpus(cluster, "b", "NVIDIA H100 80GB HBM3", 81559, slots=2)
    path, message = problem(submit(cluster, slot_type="H100", slots_per_trial=4))
    assert path == "resources.slots_per_trial"
    assert "agents have 2; it would fit with 2 (of the agents with slot_type H100)" in message
    assert submit(cluster, slot_type="A100", slots_per_trial=4).status == 201


def test_pool_without_agents_accepts_each_device(cluster: Cluster) -> None:
    assert submit(cluster, slot_type="H100", slot_memory="80gb").status == 201


def test_device_needs_a_slot(cluster: Cluster) -> None:
    answer = submit(cluster, slot_type="H100", slots_per_trial=0)
    path, message = problem(answer)
    assert (path, message) == ("resources.slot_type", "needs a slot, and the trials have none")


def test_slot_type_without_letters_is_refused(cluster: Cluster) -> None:
    path, message = problem(submit(cluster, slot_type="'--'"))
    assert path == "resources.slot_type"
    assert message == 'must be cuda, rocm, mps, cpu or the name of a device, not "--"'


def test_trial_waits_for_the_device_of_the_job(cluster: Cluster) -> None:
    enrol_gpus(cluster, "a", "NVIDIA A100-SXM4-80GB", 81920)
    enrol_gpus(cluster, "b", "NVIDIA H100 80GB HBM3", 81559)
    for _ in range(3):
        assert submit(cluster, slot_type="H100").status == 201
    agents = call(cluster.app, "GET", f"{V1}/agents", token=TOKENS[Role.ADMIN]).json["items"]
    held = {agent["id"]: [slot["allocation"] for slot in agent["slots"]] for agent in agents}
    assert held == {"a": [None, None], "b": ["1.1", "2.1"]}
