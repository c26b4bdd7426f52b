"""The instance type of a pool on AWS that names none."""

import pytest

from control_plane.aws.default_type import find_default_type
from control_plane.aws.instance_types import TYPE_DEFAULT
from control_plane.aws.pool_provider import AwsProvider
from control_plane.config.pool_warnings import pool_warnings
from control_plane.config.pools import check_cluster, check_pool
from control_plane.config.problems import ConfigInvalid
from provisioner.clouds.aws.launch_request import Ec2Settings, parse_section
from provisioner.settings import parse_provider_settings


def pool_of(fields: str) -> str:
    return f"resource_pools: [{{pool_name: default, provider: {{type: aws{fields}}}}}]"


def type_of(fields: str) -> str:
    provider = check_cluster(pool_of(fields)).resource_pools[0].provider
    assert isinstance(provider, AwsProvider)
    # The provisioner launches the same type.
    section = parse_section(parse_provider_settings(provider.to_json()).section)
    assert section.instance_type == provider.instance_type
    return provider.instance_type


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        # The g5g.xlarge is cheaper, but has an ARM processor.
        ("", "g4dn.xlarge"),
        (", spot: true", "g4dn.xlarge"),
        (", instance_slots: 1", "g4dn.xlarge"),
        (", instance_slots: 4", "g4dn.12xlarge"),
        # The p2.8xlarge is cheaper, but no current driver runs its K80.
        (", instance_slots: 8", "g4dn.metal"),
        (", instance_type: g4dn.metal", "g4dn.metal"),
        (", instance_type: g5.12xlarge, instance_slots: 4", "g5.12xlarge"),
    ],
)
def test_cheapest_type_that_fits_is_the_default(fields: str, name: str) -> None:
    assert type_of(fields) == name


def test_default_of_the_provisioner_is_the_cheapest_type_with_a_gpu() -> None:
    assert find_default_type(1) == TYPE_DEFAULT == Ec2Settings().instance_type


@pytest.mark.parametrize("slots", [0, 2, 3, 16])
def test_refuses_slots_that_no_type_has(slots: int) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        check_cluster(pool_of(f", instance_slots: {slots}"))
    (problem,) = caught.value.problems
    assert problem.path == "resource_pools[0].provider.instance_slots"
    assert problem.message == f"must be 1, 4 or 8 without an instance_type, not {slots}"
    assert problem.hint == "name an instance_type"


def test_notice_names_type_price_and_larger_types() -> None:
    assert list(pool_warnings(check_cluster(pool_of("")))) == [
        "pool default: provider.instance_type is not set: instances are g4dn.xlarge with 1 T4 at "
        "$0.526 an hour; larger types: g4dn.12xlarge with 4 T4 at $3.912 an hour, g4dn.metal with "
        "8 T4 at $7.824 an hour (list prices on demand in us-east-1)"
    ]
    (largest,) = pool_warnings(check_cluster(pool_of(", instance_slots: 8")))
    assert "g4dn.metal with 8 T4 at $7.824 an hour (list" in largest


@pytest.mark.parametrize(
    "fields",
    [", instance_type: g4dn.xlarge", ", offerings: [{instance_type: g5.xlarge}]"],
)
def test_named_type_has_no_notice(fields: str) -> None:
    assert not list(pool_warnings(check_cluster(pool_of(fields))))


def test_stored_pool_keeps_its_type() -> None:
    pool = check_cluster(pool_of(", instance_slots: 4")).resource_pools[0]
    # A stored section names the type, so that a later default does not apply.
    changed = check_pool("default", None, ["provider.max_instances=9"], pool)
    assert isinstance(changed.provider, AwsProvider)
    assert changed.provider.instance_type == "g4dn.12xlarge"
    assert changed.provider.default_type_notice() == ""
