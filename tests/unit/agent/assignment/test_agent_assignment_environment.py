from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from detcloud.agent.allocation.directory import AllocationDirectory
from detcloud.agent.assignment.environment import (
    configured_variables,
    device_variables,
    gang_variables,
    shared_environment,
    trial_environment,
    variables_by_name,
)
from detcloud.agent.slots import (
    Slot,
)


def test_trial_environment_is_an_allow_list(directory: AllocationDirectory) -> None:
    own = {"PATH": "/bin", "LANG": "C.UTF-8", "AWS_SECRET_ACCESS_KEY": "s", "TOKEN": "t"}
    gpu = Slot(1, "cuda", "GPU-b", "H100")
    environment = trial_environment(shared_environment(own, 4), {}, directory, [gpu], reserved={})
    assert not {"AWS_SECRET_ACCESS_KEY", "TOKEN"} & set(environment)
    assert environment["PATH"].endswith(":/bin")
    assert environment["LANG"] == "C.UTF-8"
    assert environment["PYTHONHASHSEED"] == "0"
    assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == "4"


def test_configured_variables_cannot_replace_home_and_trial_folder(
    directory: AllocationDirectory,
) -> None:
    variables = ["PYTHONPATH=/lib", "HOME=/root", "OMP_NUM_THREADS=1", "DETCLOUD_TRIAL_DIR=/x"]
    environment = trial_environment(
        shared_environment({}, 4), variables, directory, [], reserved={}
    )
    assert environment["PYTHONPATH"].endswith(":/lib")
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["HOME"] == str(directory.home)
    assert environment["DETCLOUD_TRIAL_DIR"] == str(directory.path)


def test_overlong_temporary_folder_is_replaced_by_the_system_default() -> None:
    # "/4.1/home/tmp", 13 bytes, is appended to the root.
    for length, is_own in ((57, True), (58, False)):
        root = Path("/" + "d" * (length - 1))
        environment = trial_environment(
            shared_environment({}, 1), {}, AllocationDirectory(root, "4.1"), [], reserved={}
        )
        own = f"{root}/4.1/home/tmp"
        assert environment["TMPDIR"] == (own if is_own else tempfile.gettempdir())
        assert environment["DETCLOUD_TMPDIR"] == own


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        (["A=1", "B=x=y", "C", "=z"], {"A": "1", "B": "x=y", "C": ""}),
        ({"A": 1}, {"A": "1"}),
        ({"cpu": ["A=1"], "gpu": ["A=2"]}, {"A": "2"}),
        ({"cpu": {"A": "1"}, "cuda": {"A": "2"}, "gpu": None}, {"A": "2"}),
        (None, {}),
        ("A=1", {}),
    ],
)
def test_variables_are_read_in_all_forms(variables: object, expected: dict[str, str]) -> None:
    config = {"environment": {"environment_variables": variables}}
    assert variables_by_name(configured_variables(config), device="cuda") == expected


@pytest.mark.parametrize(("device", "value"), [("cpu", "1"), ("mps", "1"), ("rocm", "3")])
def test_variables_are_chosen_by_device(device: str, value: str) -> None:
    variables = {"cpu": ["A=1"], "cuda": ["A=2"], "rocm": ["A=3"]}
    assert variables_by_name(variables, device=device) == {"A": value}


def test_amd_gpus_are_visible_by_uuid() -> None:
    slots = [Slot(n, "rocm", f"GPU-{n}", "MI300X", handle=f"GPU-{n}") for n in (3, 5)]
    expected = {
        "DETCLOUD_SLOT_TYPE": "rocm",
        "ROCR_VISIBLE_DEVICES": "GPU-3,GPU-5",
        "HIP_VISIBLE_DEVICES": "0,1",
        "CUDA_VISIBLE_DEVICES": "0,1",
    }
    assert device_variables(slots, in_container=False) == expected
    assert device_variables(slots, in_container=True) == expected


def test_amd_gpus_without_uuids_are_visible_by_number() -> None:
    slots = [Slot(2, "rocm", "rocm-host-1", "AMD gfx906", handle="2")]
    assert device_variables(slots, in_container=False)["ROCR_VISIBLE_DEVICES"] == "2"
    # The container has only the file of this GPU.
    assert device_variables(slots, in_container=True)["ROCR_VISIBLE_DEVICES"] == "0"


def test_trial_without_slots_sees_no_gpu(directory: AllocationDirectory) -> None:
    environment = trial_environment(shared_environment({}, 1), {}, directory, [], reserved={})
    assert environment["CUDA_VISIBLE_DEVICES"] == environment["ROCR_VISIBLE_DEVICES"] == ""
    assert environment["DETCLOUD_SLOT_TYPE"] == "cpu"


def test_mig_instances_are_visible_by_uuid() -> None:
    slots = [Slot(0, "cuda", "MIG-a", "A100 MIG 1g.5gb", 5120, "GPU-a")]
    variables = device_variables(slots, in_container=True)
    assert variables["CUDA_VISIBLE_DEVICES"] == variables["NVIDIA_VISIBLE_DEVICES"] == "MIG-a"


SPEC: dict[str, Any] = {
    "node_rank": 1,
    "nodes": 2,
    "rank": 1,
    "size": 2,
    "hosts": ["10.0.0.1", "10.0.0.2"],
    "rendezvous_port": 20_500,
    "slots": [0, 1],
}


def test_gang_variables_name_all_nodes_of_a_trial(
    directory: AllocationDirectory,
) -> None:
    variables = trial_environment(
        shared_environment({}, 1),
        ["RANK=7", "DETCLOUD_NODES=9"],
        directory,
        [],
        gang_variables(SPEC),
    )
    expected = {
        "DETCLOUD_NODES": "2",
        "DETCLOUD_NODE_RANK": "1",
        "DETCLOUD_HOSTS": "10.0.0.1,10.0.0.2",
        "DETCLOUD_RENDEZVOUS_PORT": "20500",
        "DETCLOUD_SLOTS": "2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "20500",
        "NODE_RANK": "1",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }
    assert {name: variables[name] for name in expected} == expected


def test_single_node_trial_gets_no_distributed_variables() -> None:
    alone = gang_variables({"nodes": 1, "hosts": ["127.0.0.1"], "slots": [3]})
    assert (alone["DETCLOUD_NODES"], alone["DETCLOUD_SLOTS"]) == ("1", "1")
    assert all(name.startswith("DETCLOUD_") for name in alone)
