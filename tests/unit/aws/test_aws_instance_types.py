"""The catalogue of instance types agrees with EC2's own, as moto has it."""

from control_plane.aws.instance_types import (
    CPU_FAMILIES,
    GPU_TYPES,
    NETWORK_CARDS,
    NetworkCards,
    on_demand_price,
    slots_of,
)
from tests.conftest import require
from tests.emulators.ec2.region import types

require("moto")


def _cuda_gpus(found: dict[str, object]) -> int:
    info = found.get("GpuInfo")
    assert info is None or isinstance(info, dict)
    gpus = info["Gpus"] if info else []
    return sum(gpu["Count"] for gpu in gpus if gpu["Manufacturer"] == "NVIDIA")


def test_every_type_has_the_gpus_that_ec2_says() -> None:
    # Two generations are older than that catalogue.
    told = {name: gpu_kind.gpus for name, gpu_kind in GPU_TYPES.items() if name in types()}
    assert {name.partition(".")[0] for name in GPU_TYPES.keys() - told.keys()} == {"p2", "p3"}
    assert told == {name: _cuda_gpus(types()[name]) for name in told}


def test_no_type_with_gpus_is_missing() -> None:
    missing = {name for name, found in types().items() if _cuda_gpus(found)} - GPU_TYPES.keys()
    assert not missing


def test_every_type_has_the_network_cards_that_ec2_says() -> None:
    found = {}
    for name in GPU_TYPES.keys() & types().keys():
        network = types()[name]["NetworkInfo"]
        if network["EfaSupported"]:
            adapters = network["EfaInfo"]["MaximumEfaInterfaces"]
            found[name] = NetworkCards(adapters, network["MaximumNetworkCards"])
    assert found == NETWORK_CARDS


def test_cpu_families_exist_and_have_no_accelerators() -> None:
    families = {name.partition(".")[0] for name in types()}
    assert families >= CPU_FAMILIES
    for name, found in types().items():
        if name.partition(".")[0] in CPU_FAMILIES:
            has = {"GpuInfo", "InferenceAcceleratorInfo", "NeuronInfo"} & found.keys()
            assert not has, name


def test_slots_are_gpus_unless_somebody_says_otherwise() -> None:
    assert slots_of("g5.12xlarge", None, False) == 4
    assert slots_of("g5.12xlarge", 2, False) == 2
    assert slots_of("m5.large", None, False) == 0
    assert slots_of("m5.large", None, True) == 1
    assert slots_of("m5.large", 3, True) == 3
    assert slots_of("trn1.2xlarge", None, True) is None
    assert slots_of("trn1.2xlarge", 0, True) == 1


def test_prices_are_of_whole_machines() -> None:
    # A larger one of a family is never the cheaper one.
    assert on_demand_price("p4d.24xlarge") == 21.95764
    assert on_demand_price("g5.xlarge") < on_demand_price("g5.12xlarge")
    assert on_demand_price("m5.large") == 0.0
