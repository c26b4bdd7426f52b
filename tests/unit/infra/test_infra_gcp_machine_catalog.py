"""Compute Engine's catalogue, read by Google's clients from the simulator."""

import pytest

from infra.gcp.google_api import GoogleError
from infra.gcp.machine_catalog import GoogleCatalog
from tests.emulators.gce.serving import GceServer

A100 = "nvidia-tesla-a100"


def test_reads_size_gpus_and_zones_of_machine_types(
    compute_engine: GceServer, catalog: GoogleCatalog
) -> None:
    compute_engine.project.not_offered = {
        ("a2-highgpu-2g", "us-central1-a"),
        ("a2-highgpu-2g", "europe-west4-b"),
    }
    types = catalog.read_types({"a2-highgpu-2g", "n1-standard-8", "a9-none"})
    assert {name for _, name in types} == {"a2-highgpu-2g", "n1-standard-8"}
    american, european = (types[word, "a2-highgpu-2g"] for word in ("us-central1", "europe-west4"))
    assert american.zones == {"us-central1-b", "us-central1-c"}
    assert european.zones == {"europe-west4-a"}
    # 12 vCPUs and 85 GiB for each of the two GPUs.
    assert (american.vcpus, american.memory_mb) == (24, 2 * 85 * 1024)
    assert (american.gpus, american.accelerator, american.architecture) == (2, A100, "X86_64")
    assert types["us-central1", "n1-standard-8"].gpus == 0


@pytest.mark.parametrize("name", ["n1-custom-6-20480", "custom-6-20480"])
def test_custom_type_is_offered_in_the_zones_of_the_series(
    name: str, compute_engine: GceServer, catalog: GoogleCatalog
) -> None:
    compute_engine.project.not_offered = {("n1-standard-2", "us-central1-a")}
    types = catalog.read_types({name})
    assert {key[1] for key in types} == {name}
    custom = types["us-central1", name]
    assert (custom.vcpus, custom.memory_mb, custom.gpus) == (6, 20480, 0)
    assert custom.zones == {"us-central1-b", "us-central1-c"}


def test_reads_zones_and_maximum_of_accelerators(
    compute_engine: GceServer, catalog: GoogleCatalog
) -> None:
    zones = {name for some in compute_engine.project.zones.values() for name in some}
    accelerators = catalog.read_accelerators({"nvidia-tesla-t4", "nvidia-none"})
    assert set(accelerators) == {"nvidia-tesla-t4"}
    assert accelerators["nvidia-tesla-t4"].zones == zones
    assert accelerators["nvidia-tesla-t4"].number_max == 4


def test_machine_type_lists_are_read_to_the_last_page(
    compute_engine: GceServer, catalog: GoogleCatalog
) -> None:
    names = catalog.list_names("europe-west4")
    assert {"a2-highgpu-1g", "e2-standard-4", "n1-standard-96"} <= names
    calls = compute_engine.project.calls
    once = calls.count("listMachineTypesOfZone")
    # A page per zone.
    assert once == len(compute_engine.project.zones["europe-west4"])
    compute_engine.project.page_size_max = 5
    assert catalog.list_names("europe-west4") == names
    assert calls.count("listMachineTypesOfZone") - once == once * -(-len(names) // 5)
    types = catalog.read_types(names)
    assert {name for _, name in types} == names


def test_empty_queries_make_no_calls(compute_engine: GceServer, catalog: GoogleCatalog) -> None:
    assert (catalog.read_types(()), catalog.read_accelerators(())) == ({}, {})
    assert compute_engine.project.calls == []


def test_error_has_googles_message_and_status(
    compute_engine: GceServer, catalog: GoogleCatalog
) -> None:
    compute_engine.project.fail("listMachineTypes", 403, "forbidden", "Required permission")
    with pytest.raises(GoogleError, match=r"^Required permission$") as refused:
        catalog.read_types({"e2-standard-4"})
    assert refused.value.status == 403
    with pytest.raises(GoogleError, match="regions/mars-1' was not found") as unknown:
        catalog.list_names("mars-1")
    assert unknown.value.status == 404


def test_retries_after_a_server_error(compute_engine: GceServer, catalog: GoogleCatalog) -> None:
    compute_engine.project.fail("listMachineTypes", 503, "backendError")
    assert catalog.read_types({"e2-standard-4"})
    assert compute_engine.project.calls.count("listMachineTypes") == 2


def test_unreachable_google_is_an_error_with_status_zero() -> None:
    unreachable = GoogleCatalog("acme-ml", endpoint="http://127.0.0.1:9", seconds_max=0.1)
    with pytest.raises(GoogleError, match="no answer") as silent:
        unreachable.read_types({"e2-standard-4"})
    assert silent.value.status == 0


def test_missing_google_credentials_have_status_401(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere/key.json")
    with pytest.raises(GoogleError, match="no credentials: ") as closed:
        GoogleCatalog("acme-ml").read_types({"e2-standard-4"})
    assert closed.value.status == 401
