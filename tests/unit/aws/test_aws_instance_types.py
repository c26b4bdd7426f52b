"""The catalogue of instance types against EC2's catalogue in moto."""

from control_plane.aws.instance_types import (
    CPU_FAMILIES,
    GPU_TYPES,
    NETWORK_CARDS,
    NetworkCards,
    devices_of,
    gpu_model_of,
    on_demand_price,
    slots_of,
)
from control_plane.scheduling.agent_needs import AgentDevice
from tests.conftest import require
from tests.emulators.ec2.region import types

require("moto")


def _cuda_gpus(description: dict[str, object]) -> int:
    info = description.get("GpuInfo")
    assert info is None or isinstance(info, dict)
    gpus = info["Gpus"] if info else []
    return sum(gpu["Count"] for gpu in gpus if gpu["Manufacturer"] == "NVIDIA")


def test_gpus_match_ec2s_catalogue() -> None:
    # Two generations are older than moto's catalogue.
    gpus = {name: gpu_kind.gpus for name, gpu_kind in GPU_TYPES.items() if name in types()}
    assert {name.partition(".")[0] for name in GPU_TYPES.keys() - gpus.keys()} == {"p2", "p3"}
    assert gpus == {name: _cuda_gpus(types()[name]) for name in gpus}


def test_catalogue_has_all_types_with_gpus() -> None:
    missing = {
        name for name, description in types().items() if _cuda_gpus(description)
    } - GPU_TYPES.keys()
    assert not missing


def test_gpu_models_match_ec2s_catalogue() -> None:
    for name in GPU_TYPES.keys() & types().keys():
        (named,) = {gpu["Name"] for gpu in types()[name]["GpuInfo"]["Gpus"]}
        model = gpu_model_of(name)
        assert model is not None
        # EC2 has a single name for both variants of the A100, and inserts "Server" into a name.
        assert model.name.startswith(named.replace(" Server", "")), name


def test_memory_of_devices_matches_ec2s_catalogue() -> None:
    for name in GPU_TYPES.keys() & types().keys():
        (size,) = {gpu["MemoryInfo"]["SizeInMiB"] for gpu in types()[name]["GpuInfo"]["Gpus"]}
        (device,) = devices_of(name)
        # EC2 lists the nominal size of some GPUs, and the size that drivers report of others.
        assert 0.9 <= size / device.memory_mib <= 1.01, name


def test_devices_of_types_without_gpus_are_processors() -> None:
    assert devices_of("m5.large") == (AgentDevice("cpu", ""),)
    assert devices_of("unknown.large") == ()


def test_network_cards_match_ec2s_catalogue() -> None:
    cards = {}
    for name in GPU_TYPES.keys() & types().keys():
        network = types()[name]["NetworkInfo"]
        if network["EfaSupported"]:
            adapters = network["EfaInfo"]["MaximumEfaInterfaces"]
            cards[name] = NetworkCards(adapters, network["MaximumNetworkCards"])
    assert cards == NETWORK_CARDS


def test_cpu_families_exist_and_have_no_accelerators() -> None:
    families = {name.partition(".")[0] for name in types()}
    assert families >= CPU_FAMILIES
    for name, description in types().items():
        if name.partition(".")[0] in CPU_FAMILIES:
            has = {"GpuInfo", "InferenceAcceleratorInfo", "NeuronInfo"} & description.keys()
            assert not has, name


def test_slots_default_to_the_gpus() -> None:
    assert slots_of("g5.12xlarge", None, False) == 4
    assert slots_of("g5.12xlarge", 2, False) == 2
    assert slots_of("m5.large", None, False) == 0
    assert slots_of("m5.large", None, True) == 1
    assert slots_of("m5.large", 3, True) == 3
    assert slots_of("trn1.2xlarge", None, True) is None
    assert slots_of("trn1.2xlarge", 0, True) == 1


def test_on_demand_prices_are_per_machine() -> None:
    # A larger type of a family is never cheaper.
    assert on_demand_price("p4d.24xlarge") == 21.95764
    assert on_demand_price("g5.xlarge") < on_demand_price("g5.12xlarge")
    assert on_demand_price("m5.large") == 0.0
