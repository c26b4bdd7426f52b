"""The provider section of pools on Compute Engine: checks, slots and stored settings."""

import pytest

from control_plane.config.pools import check_cluster
from control_plane.config.problems import ConfigInvalid
from control_plane.gcp.pool_provider import GcpProvider
from provisioner.clouds.gcp.launch_request import parse_section
from provisioner.settings import parse_provider_settings


def _gcp(fields: str) -> str:
    return f"resource_pools: [{{pool_name: default, provider: {{type: gcp{fields}}}}}]"


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            ", instance_type: {machine_type: a2-highgpu-3g}",
            'instance_type.machine_type: is not a known machine type: "a2-highgpu-3g" (did '
            "you mean "
            "a2-highgpu-8g? If not, set its instance_slots, or describe it in machine_types, as "
            "`detcloud deploy gcp` does)",
        ),
        (
            ", offerings: [{instance_type: g2-standard-4}, {instance_type: q9-standard-4}]",
            'offerings[1].instance_type: is not a known machine type: "q9-standard-4"',
        ),
        (
            ", offerings: [{instance_type: N1}]",
            "offerings[0].instance_type: must be a machine type, with accelerators as in n1-stand",
        ),
        (
            ", offerings: [{instance_type: n1-standard-8+nvidia-tesla-t4:3}]",
            "offerings[0].instance_type: cannot be: a machine takes 1, 2, 4 of nvidia-tesla-t4",
        ),
        (
            ", offerings: [{instance_type: a2-highgpu-1g+nvidia-tesla-t4:1}]",
            "a2-highgpu-1g has 1 of nvidia-tesla-a100; only n1 machine types take others",
        ),
        (
            ', instance_type: {machine_type: n1-standard-8, gpu_type: "", gpu_num: 4}',
            "instance_type.gpu_num: must be 0 where gpu_type is empty, not 4",
        ),
        (
            ", instance_type: {machine_type: e2-standard-4, gpu_type: nvidia-l4}",
            "instance_type.gpu_type: cannot be: e2-standard-4 takes no accelerators",
        ),
        (
            ", offerings: [{instance_type: g2-standard-48, slots: 8}]",
            "offerings[0].slots: must be 4, the GPUs of g2-standard-48, not 8",
        ),
        (", zone: us-central1", "zone: must be the name of a zone, such as us-central1-a"),
        (
            ", region: us-east1, offerings: [{instance_type: g2-standard-4, zone: us-east4-a}]",
            "offerings[0].zone: is not in the pool's region, us-east1: us-east4-a",
        ),
        (", label_key: Team", "label_key: must be 1 to 63 lowercase letters"),
        (", label_key: detcloud-pool", "begin with a letter and not with detcloud-"),
        (", label_value: A", "label_value: must be at most 63 lowercase letters"),
        (", name_prefix: 9to5", "name_prefix: must be 1 to 30 lowercase letters"),
        (", file_systems: [{server: 'a b', share: /a, folder: /b}]", "file_systems[0].server: "),
        (
            ", file_systems: [{server: a, share: vol1, folder: /b}]",
            "[0].share: must be a path like",
        ),
        (
            ", file_systems: [{server: a, share: /a, folder: /b, version: 4}]",
            "file_systems[0].version: ",
        ),
        (
            ", file_systems: [{server: a, share: /a, folder: /b},"
            " {server: b, share: /a, folder: /b}]",
            "file_systems[1].folder: is that of another one, /b",
        ),
        (", network_tags: [ok, Not]", "network_tags[1]: must be 1 to 63 lowercase letters, digits"),
        (
            ", base_config: {machineType: n1-standard-4}",
            "base_config.machineType: is set by another field (use instance_type or offerings)",
        ),
        (", base_config: {disks: {}}", "base_config.disks: must be a list of maps"),
        (", base_config: {labels: {cost: 12}}", "base_config.labels.cost: must be a label of"),
        (", base_config: {labels: {A: b}}", "base_config.labels.A: must be a label of lowercase"),
        (
            ", base_config: {metadata: {items: [{key: startup-script, value: x}]}}",
            "base_config.metadata: must not have a startup-script (use startup_script)",
        ),
        (
            ", machine_types: {n1-standard-8+nvidia-tesla-t4:1: {vcpus: 8, memory_gb: 30}}",
            "must be a machine type without accelerators",
        ),
        (", machine_types: {a9-x-1g: {vcpus: 8}}", "memory_gb: is required"),
        (", network_interface: {subnet: a}", "(did you mean subnetwork?)"),
        (", service_account: {mail: a}", "(did you mean email?)"),
        (", allowed_mounts: [data]", "allowed_mounts[0]: must be a path like /mnt/data"),
    ],
)
def test_refuses_pools_that_compute_engine_would_refuse(fields: str, problem: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        check_cluster(_gcp(fields))
    (text,) = [item.text("f") for item in caught.value.problems]
    assert problem in text


@pytest.mark.parametrize(
    ("fields", "slots"),
    [
        # n1-standard-4 with a T4.
        ("", (1,)),
        (", instance_type: {machine_type: n1-standard-8}", (1,)),
        (", instance_type: {machine_type: n1-standard-8, gpu_num: 2}", (2,)),
        (", instance_type: {machine_type: n1-standard-8, gpu_num: 0}", (0,)),
        # CPU pools in Determined's configurations.
        (', instance_type: {machine_type: n1-standard-8, gpu_type: "", gpu_num: 0}', (0,)),
        (', instance_type: {machine_type: n1-standard-8, gpu_type: ""}', (0,)),
        (', instance_type: {machine_type: e2-standard-4, gpu_type: "", gpu_num: 0}', (0,)),
        (
            ", cpu_slots_allowed: true"
            ', instance_type: {machine_type: n1-standard-8, gpu_type: "", gpu_num: 0}',
            (1,),
        ),
        (", instance_type: {machine_type: a2-megagpu-16g, preemptible: true}", (16,)),
        (", instance_type: {machine_type: g2-standard-96, gpu_type: nvidia-l4, gpu_num: 8}", (8,)),
        (", instance_type: {machine_type: e2-standard-4}", (0,)),
        (", instance_type: {machine_type: e2-standard-4}, cpu_slots_allowed: true", (1,)),
        (", instance_type: {machine_type: q9-standard-4}, instance_slots: 3", (3,)),
        (
            ", boot_disk_source_image: i, "
            "offerings: [{instance_type: n1-standard-8+nvidia-tesla-v100:8}, "
            "{instance_type: a3-highgpu-1g}]",
            (1, 8),
        ),
    ],
)
def test_slots_follow_the_machine_type(fields: str, slots: tuple[int, ...]) -> None:
    config = check_cluster(_gcp(fields))
    provider = config.resource_pools[0].provider
    assert provider is not None
    assert provider.slots_offered() == slots
    settings = parse_provider_settings(provider.to_json())
    if settings.offerings:
        assert tuple(sorted(offering.slots for offering in settings.offerings)) == slots
    else:
        # The provisioner gets the same slots from the stored section.
        assert (parse_section(settings.section).default_offering().slots,) == slots
    # The stored configuration equals the given one.
    assert check_cluster(config.to_json().decode()) == config


def test_location_follows_project_and_zone() -> None:
    def location(fields: str) -> str:
        provider = check_cluster(_gcp(fields)).resource_pools[0].provider
        assert provider is not None
        return parse_provider_settings(provider.to_json()).location

    # The location finds instances that a pool left at a former place.
    assert location(", zone: us-east1-b") == "gcp::us-east1"
    assert location(", project: p, zone: us-east4-b, region: us-east4") == "gcp:p:us-east4"


def test_all_fields_of_the_section_reach_the_provisioner() -> None:
    text = """
resource_pools:
  - pool_name: default
    provider:
      type: gcp
      project: p1
      region: us-central1
      base_config: {minCpuPlatform: Intel Cascade Lake}
      boot_disk_size: 300
      boot_disk_type: pd-ssd
      boot_disk_source_image: projects/p1/global/images/family/ours
      label_key: team
      label_value: vision
      name_prefix: gpu
      network_interface: {network: n, subnetwork: s, external_ip: true}
      network_tags: [ssh]
      service_account: {email: a@p1.iam.gserviceaccount.com, scopes: [x]}
      extended_preemption_notice: true
      allowed_mounts: [/mnt/data]
"""
    provider = check_cluster(text).resource_pools[0].provider
    assert provider is not None
    assert provider.mounts_allowed == ("/mnt/data",)
    settings = parse_section(parse_provider_settings(provider.to_json()).section)
    assert (settings.project, settings.place, settings.name_prefix) == ("p1", "us-central1", "gpu")
    assert settings.base_config == {"minCpuPlatform": "Intel Cascade Lake"}
    assert (settings.boot_disk_size, settings.boot_disk_type) == (300, "pd-ssd")
    assert settings.boot_disk_source_image.endswith("/ours")
    assert (settings.label_key, settings.label_value) == ("team", "vision")
    network = settings.network_interface
    assert (network.network, network.subnetwork, network.external_ip) == ("n", "s", True)
    assert (settings.network_tags, settings.extended_preemption_notice) == (("ssh",), True)
    assert settings.service_account.email.startswith("a@")
    assert settings.service_account.scopes == ("x",)


def test_trials_may_mount_the_pools_file_shares() -> None:
    fields = ", allowed_mounts: [/mnt/more], file_systems: [{server: 10.0.0.2, share: /vol1, "
    fields += "folder: /mnt/data, version: 4.1}]"
    provider = check_cluster(_gcp(fields)).resource_pools[0].provider
    assert isinstance(provider, GcpProvider)
    assert provider.mounts_allowed == ("/mnt/more", "/mnt/data")
    assert provider.file_systems[0].version == "4.1"
