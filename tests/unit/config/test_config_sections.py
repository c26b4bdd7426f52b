from __future__ import annotations

from typing import Any

import pytest

from control_plane.config.section import to_integers
from tests.unit.config.samples import ABSENT, LENGTH, STEP, check_changed, find_messages

S3 = {"type": "s3", "bucket": "b"}
AZURE = {"type": "azure", "container": "c"}
SHARED = {"type": "shared_fs", "host_path": "/shared"}
MOUNT = {"host_path": "/data", "container_path": "data"}

ACCEPTED: list[tuple[str, Any]] = [
    ("entrypoint", "package.model_def:Outer.Inner"),
    ("description", ""),
    ("labels", ["first", "second"]),
    ("labels", {"first": True}),
    ("data", {"bucket": "b", "nested": {"any": [1, None, {"type": "thing"}]}}),
    ("min_validation_period", 3),
    ("min_checkpoint_period", 1),
    ("checkpoint_policy", "all"),
    ("checkpoint_policy", "none"),
    ("batches_per_step", 1),
    ("max_restarts", 0),
    ("checkpoint_storage", {"type": "gcs", "bucket": "b", "prefix": "a/b"}),
    (
        "checkpoint_storage",
        {"type": "hdfs", "hdfs_url": "http://n1:50070;http://n2:50070", "hdfs_path": "/c"},
    ),
    ("checkpoint_storage", {**S3, "access_key": "k", "secret_key": "s"}),
    ("checkpoint_storage", {**S3, "endpoint_url": "http://127.0.0.1:8080/"}),
    ("checkpoint_storage", SHARED),
    ("checkpoint_storage", {**SHARED, "storage_path": "below"}),
    ("checkpoint_storage", {**SHARED, "storage_path": "/shared/a/../b"}),
    ("checkpoint_storage", {"type": "directory", "container_path": "/checkpoints"}),
    ("checkpoint_storage", {**AZURE, "connection_string": "x"}),
    ("checkpoint_storage", {**AZURE, "account_url": "https://a.net", "credential": "x"}),
    ("checkpoint_storage", {"save_experiment_best": 3, "save_trial_latest": 0}),
    ("resources", {"max_slots": 8, "slots_per_trial": 8, "weight": 0.5, "shm_size": 0}),
    ("resources", {"agent_label": "a", "native_parallel": True}),
    ("resources", {"priority": 99, "resource_pool": "gpus", "is_single_node": True}),
    ("resources", {"devices": ["/dev/a:/dev/b", {"host_path": "/a", "container_path": "/b"}]}),
    ("bind_mounts", [MOUNT, {**MOUNT, "read_only": True, "propagation": "rshared"}]),
    ("environment", {"image": "one"}),
    ("environment", {"image": {"cpu": "one", "gpu": "two"}}),
    ("environment", {"environment_variables": ["A=1", "B=", "C=a=b"]}),
    ("environment", {"environment_variables": {"cpu": ["A=1"], "gpu": ["A=2"]}}),
    ("environment", {"ports": {"http": 8080}, "force_pull_image": True}),
    ("environment", {"registry_auth": {"username": "u", "password": "p"}}),
    (
        "environment",
        {"registry_auth": {"username": "u", "password": "p", "server": "s", "email": "e"}},
    ),
    ("optimizations", {"aggregation_frequency": 4, "average_aggregated_gradients": False}),
    ("optimizations", {"gradient_compression": True, "mixed_precision": "O3"}),
    ("optimizations", {"tensor_fusion_threshold": 0, "auto_tune_tensor_fusion": True}),
    ("reproducibility", {"experiment_seed": 2**31 - 1}),
    ("data_layer", {"type": "shared_fs"}),
    ("data_layer", {"host_storage_path": "/a", "container_storage_path": "/b"}),
    ("data_layer", {"host_storage_path": "/a"}),
    ("log_policies", [{"name": "CUDA OOM"}, {"pattern": "a", "action": {"type": "exclude_node"}}]),
    ("log_policies", [{"type": "on_failure_exclude_node", "pattern": "a", "restarts": 2}]),
    ("data_layer", {"type": "s3", "bucket": "b", "bucket_directory_path": "c", "access_key": "k"}),
    (
        "data_layer",
        {
            "type": "gcs",
            "bucket": "b",
            "bucket_directory_path": "c",
            "local_cache_host_path": "/a",
            "local_cache_container_path": "/b",
        },
    ),
    ("internal", {"native": {"command": ["python3", "train.py"]}}),
    ("tensorboard_storage", {"type": "shared_fs", "host_path": "/a"}),
    ("profiling", {"enabled": True, "begin_on_batch": 5, "end_after_batch": 5}),
    ("debug", True),
    ("workspace", ""),
    ("project", ""),
    ("slurm", {"gpu_type": "v100", "sbatch_args": ["--exclusive"]}),
    ("pbs", {"pbsbatch_args": ["-V"]}),
    ("environment", {"proxy_ports": [{"proxy_port": 8265, "proxy_tcp": True}]}),
    ("environment", {"pod_spec": {"spec": {"containers": [{"name": "x"}]}}}),
    ("environment", {"add_capabilities": ["SYS_PTRACE"], "drop_capabilities": ["NET_RAW"]}),
    ("environment", {"slurm": ["--exclusive"], "pbs": ["-V"]}),
    ("environment", {"registry_auth": {"auth": "dTpw"}}),
    ("environment", {"registry_auth": {"identitytoken": "t", "serveraddress": "ghcr.io"}}),
    ("environment", {"registry_auth": {"registrytoken": "t", "username": "u"}}),
    ("checkpoint_storage", {**SHARED, "container_path": "c", "checkpoint_path": "a"}),
    ("checkpoint_storage", {**SHARED, "tensorboard_path": "t"}),
    ("optimizations", {"grad_updates_size_file": "sizes.txt"}),
]

REFUSED: list[tuple[str, Any, str, str]] = [
    ("entrypoint", ABSENT, "entrypoint", "is required"),
    ("entrypoint", "", "entrypoint", "must be module:Class, and not empty"),
    ("entrypoint", "python3 train.py", "entrypoint", 'must be module:Class, not "python3'),
    ("entrypoint", "model_def:", "entrypoint", "must be module:Class"),
    ("labels", 5, "labels", "must be a list, not 5"),
    ("labels", ["a" * 1_001], "labels[0]", "must have at most 1000 characters"),
    ("labels", [f"a{n}" for n in range(101)], "labels", "must have at most 100 entries"),
    ("name", "a" * 100_001, "name", "must have at most 100000 characters"),
    ("labels", {"a": 5}, "labels", "must map each name to true, but 'a' has 5"),
    ("labels", [{"a": True}], "labels[0]", "must be a string, not a map"),
    ("data", [1], "data", "must be a map"),
    ("min_validation_period", 0, "min_validation_period", "must be a number of steps, at least 1"),
    ("min_checkpoint_period", True, "min_checkpoint_period", "at least 1, not true"),
    ("checkpoint_policy", "some", "checkpoint_policy", "must be 'best', 'all' or 'none', not"),
    ("batches_per_step", 0, "batches_per_step", "must be at least 1, not 0"),
    (
        "environment.proxy_ports",
        [{"proxy_port": 1}, {"proxy_port": 65_536}],
        "environment.proxy_ports[1].proxy_port",
        "must be at most 65535, not 65536",
    ),
    (
        "environment.proxy_ports",
        [{"proxy_port": port} for port in range(1, 34)],
        "environment.proxy_ports",
        "have 33 ports, at most 32 are allowed",
    ),
    ("max_restarts", -1, "max_restarts", "must be at least 0, not -1"),
    ("max_restarts", 1.5, "max_restarts", "must be an integer, not 1.5"),
    ("max_restarts", "5", "max_restarts", 'must be an integer, not "5"'),
    ("checkpoint_storage.type", "s4", "checkpoint_storage.type", "must be one of azure, dir"),
    ("checkpoint_storage.bucket", "b", "checkpoint_storage.type", "is required"),
    ("checkpoint_storage", {"type": "s3"}, "checkpoint_storage.bucket", "is required"),
    ("checkpoint_storage", {"type": "gcs", "bucket": ""}, "checkpoint_storage.bucket", "not be em"),
    ("checkpoint_storage", "s3", "checkpoint_storage", "must be a map"),
    (
        "checkpoint_storage",
        {**S3, "access_key": "AKIA"},
        "checkpoint_storage.secret_key",
        "together with access_key",
    ),
    (
        "checkpoint_storage",
        {**S3, "secret_key": "s"},
        "checkpoint_storage.secret_key",
        "together with access_key",
    ),
    (
        "checkpoint_storage",
        {**S3, "prefix": "a/../b"},
        "checkpoint_storage.prefix",
        "must not contain '..'",
    ),
    (
        "checkpoint_storage",
        {**S3, "endpoint_url": "127.0.0.1"},
        "checkpoint_storage.endpoint_url",
        "must be a URL",
    ),
    (
        "checkpoint_storage",
        {"type": "hdfs", "hdfs_url": "n1:50070", "hdfs_path": "/a"},
        "checkpoint_storage.hdfs_url",
        "must be a URL",
    ),
    (
        "checkpoint_storage",
        {"type": "hdfs", "hdfs_url": "http://n1:50070", "hdfs_path": "a"},
        "checkpoint_storage.hdfs_path",
        "must be an absolute path",
    ),
    (
        "checkpoint_storage",
        {"type": "shared_fs", "host_path": "a"},
        "checkpoint_storage.host_path",
        "must be an absolute path",
    ),
    (
        "checkpoint_storage",
        {**SHARED, "storage_path": "../other"},
        "checkpoint_storage.storage_path",
        "must be relative or inside host_path",
    ),
    (
        "checkpoint_storage",
        {**SHARED, "storage_path": "/shared2"},
        "checkpoint_storage.storage_path",
        "must be relative or inside host_path",
    ),
    ("checkpoint_storage", AZURE, "checkpoint_storage.account_url", "is required unless"),
    (
        "checkpoint_storage",
        {**AZURE, "connection_string": "x", "account_url": "https://a.net"},
        "checkpoint_storage.account_url",
        "must not be used together with connection_string",
    ),
    (
        "checkpoint_storage",
        {**AZURE, "connection_string": "x", "credential": "x"},
        "checkpoint_storage.credential",
        "must not be used together with connection_string",
    ),
    (
        "checkpoint_storage",
        {**AZURE, "account_url": "https://a.blob.core.windows.net?sig=x"},
        "checkpoint_storage.account_url",
        "must have no '?'",
    ),
    (
        "checkpoint_storage",
        {**AZURE, "account_url": "https://a.net"},
        "checkpoint_storage.credential",
        "is required for an account_url that is not Azure's own",
    ),
    (
        "checkpoint_storage",
        {**S3, "save_trial_best": -1},
        "checkpoint_storage.save_trial_best",
        "must be at least 0, not -1",
    ),
    ("resources.slots_per_trial", 0, "resources.slots_per_trial", "must be at least 1, not 0"),
    ("resources.weight", 0, "resources.weight", "must be greater than 0, not 0"),
    ("resources.weight", True, "resources.weight", "must be a number, not true"),
    ("resources.max_slots", 0, "resources.max_slots", "must be at least slots_per_trial (1)"),
    ("resources.shm_size", -1, "resources.shm_size", "must be at least 0, not -1"),
    ("resources.shm_size", "much", "resources.shm_size", "a size like '1.5 gb', not \"much\""),
    ("resources.priority", 100, "resources.priority", "must be at most 99, not 100"),
    ("resources.priority", 0, "resources.priority", "must be at least 1, not 0"),
    ("resources.devices", ["/dev/a"], "resources.devices[0]", "HOST_PATH:CONTAINER_PATH"),
    ("bind_mounts", [{"host_path": "/a"}], "bind_mounts[0].container_path", "is required"),
    ("bind_mounts", [{**MOUNT, "host_path": "a"}], "bind_mounts[0].host_path", "absolute path"),
    ("bind_mounts", [MOUNT, {**MOUNT, "container_path": "."}], "bind_mounts[1].container_path", ""),
    ("bind_mounts", [{**MOUNT, "container_path": "./"}], "bind_mounts[0].container_path", "itself"),
    ("bind_mounts", [{**MOUNT, "mode": "rw"}], "bind_mounts[0].mode", "is not a known field"),
    ("bind_mounts", {"host_path": "/a"}, "bind_mounts", "must be a list"),
    ("environment.image", 5, "environment.image", "must be a string, not 5"),
    ("environment.image", {"tpu": "x"}, "environment.image.tpu", "is not a known field"),
    ("environment.image", {"gpu": "x", "cuda": "y"}, "environment.image", "not have both gpu and"),
    (
        "environment.environment_variables",
        ["A"],
        "environment.environment_variables[0]",
        "must be of the form NAME=VALUE",
    ),
    ("environment.ports", {"http": 70000}, "environment.ports.http", "must be at most 65535"),
    (
        "environment.registry_auth",
        {"auth": "x", "server": "ghcr.io", "serveraddress": "docker.io"},
        "environment.registry_auth.serveraddress",
        "must not differ from server",
    ),
    ("optimizations.mixed_precision", "O4", "optimizations.mixed_precision", "'O0', 'O1'"),
    ("optimizations.aggregation_frequency", 0, "optimizations.aggregation_frequency", "at least 1"),
    ("optimizations.tensor_fusion_threshold", -1, "optimizations.tensor_fusion_threshold", "0"),
    ("optimizations.gradient_compression", 1, "optimizations.gradient_compression", "true or"),
    ("reproducibility.experiment_seed", 2**31, "reproducibility.experiment_seed", "2147483647"),
    ("data_layer", {"type": "hdfs"}, "data_layer.type", "must be one of gcs, s3, shared_fs"),
    ("log_policies", {"pattern": "a"}, "log_policies", "must be a list"),
    ("log_policies", ["a"], "log_policies[0]", "must be a map with a pattern and an action"),
    (
        "log_policies",
        [{"pattern": "a", "action": "exclude_node"}, {"pattern": "a", "action": "cancel_retry"}],
        "log_policies[1].action",
        "must be cancel_retries, exclude_node or a map {signal: TEXT}",
    ),
    (
        "log_policies",
        [{"pattern": "a", "action": {"type": "on_failure"}}],
        "log_policies[0].action.type",
        "must be one of cancel_retries, exclude_node",
    ),
    (
        "log_policies",
        [{"pattern": "a", "actions": ["exclude_node", {"signal": 1}]}],
        "log_policies[0].actions[1].signal",
        "must be a string, not 1",
    ),
    ("log_policies", [{"type": ["a"]}], "log_policies[0].type", "must be one of on_failure_dont"),
    ("log_policies", [{"pattern": 3}], "log_policies[0].pattern", "must be a string, not 3"),
    ("log_policies", [{"regex": "a"}], "log_policies[0].regex", "is not a known field"),
    ("data_layer.container_storage_path", "a", "data_layer.container_storage_path", "absolute"),
    ("data_layer", {"type": "s3", "bucket": "b"}, "data_layer.bucket_directory_path", "required"),
    (
        "data_layer",
        {"type": "gcs", "bucket": "b", "bucket_directory_path": "c", "access_key": "k"},
        "data_layer.access_key",
        "is not a known field",
    ),
    (
        "profiling",
        {"begin_on_batch": 5, "end_after_batch": 4},
        "profiling.end_after_batch",
        "must be at least begin_on_batch (5), not 4",
    ),
    ("searcher", ABSENT, "searcher", "is required"),
    ("scheduling", 5, "scheduling", "is not a known field"),
]


@pytest.mark.parametrize(("path", "value"), ACCEPTED)
def test_accepts_all_sections_of_the_reference(path: str, value: Any) -> None:
    changes = {path: value}
    if path == "resources" and value.get("slots_per_trial", 1) > 1:
        changes["hyperparameters.global_batch_size"] = value["slots_per_trial"]
    assert check_changed(STEP, changes).era == "step"


@pytest.mark.parametrize(("path", "value", "refused", "message"), REFUSED)
def test_problems_of_sections_name_the_field(
    path: str, value: Any, refused: str, message: str
) -> None:
    messages = find_messages(STEP, {path: value})
    assert refused in messages
    assert message in messages[refused]


def test_unset_sections_have_the_documented_defaults() -> None:
    config = check_changed(STEP, {})
    assert (config.max_restarts, config.checkpoint_policy, config.workload_batches) == (
        5,
        "best",
        100,
    )
    assert (config.resources.slots_per_trial, config.resources.weight) == (1, 1.0)
    assert config.resources.max_slots is None
    storage = config.checkpoint_storage
    kept = (storage.save_experiment_best, storage.save_trial_best, storage.save_trial_latest)
    assert kept == (0, 1, 1)
    assert (config.environment.image.cpu or "").endswith("cpu-0.5.0")
    assert (config.environment.image.cuda or "").endswith("gpu-0.5.0")
    assert config.searcher.smaller_is_better


@pytest.mark.parametrize(
    ("base", "average_training_metrics", "cycle_time"), [(STEP, False, 5), (LENGTH, True, 1)]
)
def test_eras_differ_in_two_optimizations(
    base: dict[str, Any], average_training_metrics: bool, cycle_time: int
) -> None:
    for changes in ({}, {"optimizations": {"mixed_precision": "O1"}}, {"optimizations": None}):
        optimizations = check_changed(base, changes).optimizations
        assert optimizations.average_training_metrics is average_training_metrics
        assert optimizations.tensor_fusion_cycle_time == cycle_time


def test_single_image_applies_to_all_device_kinds() -> None:
    images = check_changed(STEP, {"environment.image": "mine"}).environment.image
    assert (images.cpu, images.cuda, images.rocm) == ("mine", "mine", "mine")


def test_former_device_name_gpu_means_cuda() -> None:
    changes = {"environment.environment_variables": {"gpu": ["A=1"]}}
    variables = check_changed(STEP, changes).environment.environment_variables
    assert (variables.cpu, variables.cuda) == ((), ("A=1",))


@pytest.mark.parametrize(
    ("size", "size_bytes"),
    [
        (4294967296, 4294967296),
        ("1.5 gb", 1610612736),  # 1.5 * 1024**3
        (".5 GiB", 536870912),  # 0.5 * 1024**3
        ("64m", 67108864),  # 64 * 1024**2
        ("10 KiB", 10240),
        ("512", 512),
    ],
)
def test_shm_size_is_bytes_or_a_number_with_a_unit(size: object, size_bytes: int) -> None:
    assert check_changed(LENGTH, {"resources.shm_size": size}).resources.shm_size == size_bytes


def test_length_era_allows_trials_without_slots() -> None:
    assert check_changed(LENGTH, {"resources.slots_per_trial": 0}).job.slots_per_trial == 0


@pytest.mark.parametrize(
    "entrypoint",
    [
        "python3 -m determined.launch.torch_distributed --trial model_def:MyTrial",
        "dlprof --mode=simple python3 -m determined.launch.autohorovod --trial a:B",
        ["python3", "script.py", "arg1"],
        ["python3", "script.py", ""],
        "model_def:MyTrial",
    ],
)
def test_length_era_accepts_launchers(entrypoint: str | list[str]) -> None:
    parsed = check_changed(LENGTH, {"entrypoint": entrypoint}).entrypoint
    assert parsed == (tuple(entrypoint) if isinstance(entrypoint, list) else entrypoint)


@pytest.mark.parametrize("entrypoint", [[], ["", "a"], ["a", 5], 5, "  "])
def test_rejects_empty_entrypoints(entrypoint: object) -> None:
    assert "entrypoint" in find_messages(LENGTH, {"entrypoint": entrypoint})


def test_job_settings_come_from_the_resources() -> None:
    job = check_changed(
        LENGTH, {"resources": {"priority": 7, "resource_pool": "p", "weight": 2}}
    ).job
    assert (job.priority, job.resource_pools, job.weight) == (7, ("p",), 2.0)
    assert (job.max_slots, job.slots_per_trial) == (None, 1)


def test_labels_are_unique_and_ordered() -> None:
    assert check_changed(STEP, {"labels": ["b", "a", "b"]}).labels == ("b", "a")
    assert check_changed(STEP, {"labels": {"b": True, "a": False}}).labels == ("b",)


def test_native_experiment_needs_no_entrypoint() -> None:
    changes = {"entrypoint": ABSENT, "internal": {"native": {"command": ["python3", "a.py"]}}}
    assert check_changed(STEP, changes).entrypoint is None


@pytest.mark.parametrize("is_single_node", [None, True, False])
def test_trial_class_may_use_several_machines(is_single_node: bool | None) -> None:
    resources = {"slots_per_trial": 4, "is_single_node": is_single_node}
    config = check_changed(LENGTH, {"entrypoint": "model_def:Trial", "resources": resources})
    assert config.resources.is_single_node is is_single_node


@pytest.mark.parametrize(
    "entrypoint",
    ["python3 -m detcloud.launch.mpi -- train.py", ["python3", "-m", "determined.launch.mpi"]],
)
def test_rejects_unknown_launcher(entrypoint: object) -> None:
    text = find_messages(LENGTH, {"entrypoint": entrypoint})["entrypoint"]
    assert text == "names the launcher detcloud.launch.mpi, which does not exist"


WHOLE_FLOATS: list[tuple[dict[str, Any], str, Any]] = [
    (STEP, "max_restarts", 1e1),
    (STEP, "batches_per_step", 1e2),
    (STEP, "searcher.max_steps", 1e3),
    (STEP, "min_validation_period", 1e1),
    (STEP, "resources.slots_per_trial", 1.0),
    (STEP, "environment.ports", {"web": 8e3}),
    (LENGTH, "scheduling_unit", 1e2),
    (LENGTH, "searcher.max_length", 1e3),
    (LENGTH, "searcher.max_length", {"batches": 1e3}),
    (LENGTH, "min_checkpoint_period", {"batches": 1e2}),
    (LENGTH, "hyperparameters.x", {"type": "int", "minval": 1e1, "maxval": 1e3}),
]


@pytest.mark.parametrize(("era", "path", "value"), WHOLE_FLOATS)
def test_whole_float_is_read_as_an_integer(era: dict[str, Any], path: str, value: Any) -> None:
    written = check_changed(era, {path: value})
    meant = check_changed(era, {path: to_integers(value)})
    assert written == meant
    assert written.to_json() == meant.to_json()


@pytest.mark.parametrize("value", [1.5, 1e-3, True, "ten"])
def test_fractions_and_texts_are_no_integers(value: Any) -> None:
    for path in ("max_restarts", "searcher.max_length"):
        assert path in find_messages(LENGTH, {path: value})


def test_yamls_off_turns_the_detection_of_hangs_off() -> None:
    config = check_changed(STEP, {"hang_detection.action": False})
    assert config.hang_detection.action == "off"
    assert find_messages(STEP, {"hang_detection.action": True})
