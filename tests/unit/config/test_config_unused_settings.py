"""Each setting without an effect gives a notice, and the reference marks the setting."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from control_plane.config.advice import config_warnings
from control_plane.config.check import check_config
from control_plane.config.reference import render_reference
from detcloud.shared.process_settings import process_setting_notices
from detcloud.shared.unused_settings import UNUSED_SETTINGS, unused_setting_notices
from tests.unit.config.samples import LENGTH, check_changed


def names_without_effect() -> Iterator[str]:
    """Yield the names of the fields that have no effect according to the reference."""
    for line in render_reference().splitlines():
        if "has no effect" in line:
            yield line.split("`")[1]


def test_settings_without_effect_in_the_reference_have_a_notice() -> None:
    noticed = {path[-1] for path in (unused_setting.path for unused_setting in UNUSED_SETTINGS)}
    noticed.add("unauthenticated")
    documented = set(names_without_effect())
    assert documented - noticed == set()
    # The reference describes `mixed_precision` in other words.
    assert noticed - documented == {"mixed_precision"}


def test_open_proxy_port_gives_a_notice() -> None:
    ports: list[dict[str, Any]] = [{"proxy_port": 8265, "proxy_tcp": True}, {"proxy_port": 80}]
    config = {"environment": {"proxy_ports": ports}}
    assert list(unused_setting_notices(config)) == []
    ports[1]["unauthenticated"] = True
    (notice,) = unused_setting_notices(config)
    assert notice.startswith("environment.proxy_ports.unauthenticated is not used: only the owner")


# A value of each setting for containers only, and a part of the notice.
OF_CONTAINERS: dict[str, tuple[dict[str, Any], str]] = {
    "image": ({"environment": {"image": "org/x"}}, "image org/x is not used"),
    "registry_auth": ({"environment": {"registry_auth": {"auth": "x"}}}, "registry_auth is not"),
    "force_pull_image": ({"environment": {"force_pull_image": True}}, "force_pull_image is not"),
    "shm_size": ({"resources": {"shm_size": 1}}, "shm_size is not used"),
    "devices": ({"resources": {"devices": [{"host_path": "/dev/x"}]}}, "devices is not used"),
    "container_path": (
        {"bind_mounts": [{"host_path": "/a", "container_path": "/b"}]},
        "bind mount /b is not made",
    ),
    "read_only": (
        {"bind_mounts": [{"host_path": "/a", "container_path": "a", "read_only": True}]},
        "bind mount a: read_only cannot be enforced",
    ),
    "propagation": (
        {"bind_mounts": [{"host_path": "/a", "container_path": "a", "propagation": "shared"}]},
        "bind mount a: propagation shared cannot be enforced",
    ),
    "checkpoint_storage.propagation": (
        {"checkpoint_storage": {"type": "shared_fs", "propagation": "rshared"}},
        "checkpoint_storage.propagation rshared cannot be enforced",
    ),
    "container_storage_path": (
        {"data_layer": {"host_storage_path": "/a", "container_storage_path": "/b"}},
        "data_layer.container_storage_path is not used",
    ),
    "local_cache_container_path": (
        {
            "data_layer": {
                "type": "s3",
                "local_cache_host_path": "/a",
                "local_cache_container_path": "/b",
            }
        },
        "data_layer.local_cache_container_path is not used",
    ),
}


def test_container_settings_give_notices_without_containers() -> None:
    lines = render_reference().splitlines()
    documented = {
        line.split("`")[1] for line in lines if re.search(r"(?i)\bonly in containers\b", line)
    }
    assert documented == {name.split(".")[-1] for name in OF_CONTAINERS}
    for name, (config, text) in OF_CONTAINERS.items():
        (notice,) = process_setting_notices(config, device="cpu", reason="WHY")
        assert text in notice, name
        assert "WHY" in notice


@pytest.mark.parametrize("setting", UNUSED_SETTINGS, ids=lambda item: ".".join(item.path))
def test_unused_setting_gives_one_notice_unless_neutral(setting: Any) -> None:
    value: Any = "O2" if "mixed_precision" in setting.path else 7
    config: dict[str, Any] = {"checkpoint_storage": {"type": setting.storage}}
    section = config
    for name in setting.path[:-1]:
        section = section.setdefault(name, {})
    if setting.switch:
        section[setting.path[-1]] = value
        assert list(unused_setting_notices(config)) == []
        section[setting.switch] = True
    section[setting.path[-1]] = value
    (notice,) = unused_setting_notices(config)
    assert notice.startswith(f"{'.'.join(setting.path)} is not used: ")
    section[setting.path[-1]] = setting.neutral[0] if setting.neutral else None
    assert list(unused_setting_notices(config)) == []


def test_submission_warns_of_unused_settings_but_not_of_defaults() -> None:
    text = """
name: n
entrypoint: python train.py
searcher: {name: single, metric: loss, max_length: {batches: 10}}
"""
    assert list(config_warnings(check_config(text))) == []
    more = "debug: true\nprofiling: {enabled: true, begin_on_batch: 3}\n"
    assert [
        config_warning.split()[0] for config_warning in config_warnings(check_config(text + more))
    ] == [
        "profiling.begin_on_batch",
        "debug",
    ]


@pytest.mark.parametrize(
    ("entrypoint", "more"),
    [
        ("model_def:Trial", ""),
        ("python train.py", "; a script written for Determined receives this length unchanged"),
    ],
)
def test_warns_of_epochs_without_a_batch_size(entrypoint: str, more: str) -> None:
    text = f"""
name: n
entrypoint: {entrypoint}
records_per_epoch: 100
searcher: {{name: single, metric: loss, max_length: {{epochs: 2}}}}
"""
    (warning,) = config_warnings(check_config(text))
    assert warning == (
        "searcher.max_length: without hyperparameters.global_batch_size a batch counts as one"
        f" record{more}"
    )


@pytest.mark.parametrize(
    ("variables", "references"),
    [
        (["A=1", "B=$A"], ["$A in B"]),
        (["A=1", "B=${A}/x", "C=$B$A"], ["$A in B", "$B in C"]),
        (["PATH=/mine:$PATH"], ["$PATH in PATH"]),
        ({"cpu": ["A=1", "B=$A"], "gpu": ["A=2", "B=$A"]}, ["$A in B"]),
        # A variable may only refer to earlier variables; a lone dollar sign is a character.
        (["B=$A", "A=1"], []),
        (["PASSWORD=pa$$word$5"], []),
    ],
)
def test_warns_of_variables_that_refer_to_variables(variables: Any, references: list[str]) -> None:
    config = check_changed(LENGTH, {"environment.environment_variables": variables})
    warnings = list(config_warnings(config))
    place = "environment.environment_variables: "
    assert [warning.removeprefix(place).partition(" is ")[0] for warning in warnings] == references


def test_warns_of_command_slots_in_experiments() -> None:
    (warning,) = config_warnings(check_changed(LENGTH, {"resources.slots": 4}))
    assert warning.startswith("resources.slots is not used: slots_per_trial says how many")


def test_warns_of_pool_patience_with_a_single_pool() -> None:
    patience = {"resources.pool_patience": "5m"}
    (warning,) = config_warnings(check_changed(LENGTH, patience))
    assert warning.startswith("resources.pool_patience is not used: ")
    several = {**patience, "resources.resource_pool": ["a", "b"]}
    assert list(config_warnings(check_changed(LENGTH, several))) == []


ASHA = {"name": "adaptive_asha", "metric": "loss", "max_trials": 9, "max_length": {"batches": 9}}


@pytest.mark.parametrize(
    ("changes", "overruled"),
    [
        ({}, []),
        ({"max_time": 5, "time_metric": "batches"}, ["max_length"]),
        ({"time_metric": "batches"}, ["time_metric"]),
        ({"source_checkpoint_uuid": "abc"}, []),
        ({"source_trial_id": 1, "source_checkpoint_uuid": "abc"}, ["source_checkpoint_uuid"]),
        ({"bracket_rungs": [2]}, []),
        ({"bracket_rungs": [2], "mode": "aggressive", "max_rungs": 3}, ["mode", "max_rungs"]),
    ],
)
def test_warns_of_overruled_search_options(changes: dict[str, Any], overruled: list[str]) -> None:
    warnings = list(config_warnings(check_changed(LENGTH, {"searcher": {**ASHA, **changes}})))
    assert [warning.split(" is not used: ")[0] for warning in warnings] == [
        f"searcher.{item}" for item in overruled
    ]
