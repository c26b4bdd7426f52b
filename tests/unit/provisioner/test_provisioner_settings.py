"""Settings of the provisioner: parsing, defaults, encoding and errors."""

import json
from typing import Any

import pytest

from control_plane.fleet.records import Market, Offering
from provisioner.model import ProvisionerSettings
from provisioner.settings import (
    SettingsInvalid,
    decode_settings,
    encode_settings,
    parse_provider_settings,
)


def _read(**fields: Any) -> ProvisionerSettings:
    return parse_provider_settings(json.dumps({"type": "local"} | fields))


def test_all_settings_but_the_kind_have_defaults() -> None:
    settings = _read()
    assert settings == ProvisionerSettings("local")
    assert (settings.min_instances, settings.max_instances) == (0, 5)
    assert settings.idle_ms_max == settings.starting_ms_max == 1_200_000


@pytest.mark.parametrize(
    ("text", "time_ms"), [("20m", 1_200_000), ("1h30m", 5_400_000), ("500ms", 500), (90, 90_000)]
)
def test_parses_periods_as_texts_or_seconds(text: object, time_ms: int) -> None:
    assert _read(max_idle_agent_period=text).idle_ms_max == time_ms


def test_offering_name_is_type_zone_and_market() -> None:
    fields = {"instance_type": "g5", "zone": "a", "market": "spot", "slots": 4, "price_per_hour": 2}
    offering = Offering("g5/a/spot", "g5", "a", Market.SPOT, 4, 2.0)
    assert _read(offerings=[fields]).offerings == (offering,)
    plain = Offering("g5/on_demand", "g5", "", Market.ON_DEMAND, 1)
    assert _read(offerings=[{"instance_type": "g5"}]).offerings == (plain,)


def test_unknown_fields_go_into_the_section() -> None:
    settings = _read(instance_slots=2, min_instances=1)
    assert settings.section == '{"instance_slots": 2}'


def test_location_is_account_and_region() -> None:
    assert (
        _read(region="eu-1", image_id="a").location == _read(region="eu-1", image_id="b").location
    )
    assert _read(region="eu-1").location != _read(region="eu-2").location


def test_launch_error_retries_set_the_error_limit() -> None:
    # A first attempt and three retries.
    assert _read(launch_error_retries=3).launch_error_limit == 4
    assert _read(launch_error_retries=0).launch_error_limit == 10
    assert _read(launch_error_retries=3, launch_error_limit=0).launch_error_limit == 0


def test_settings_survive_encoding() -> None:
    settings = _read(offerings=[{"instance_type": "g5", "market": "spot"}], on_demand_base=0.5)
    assert decode_settings(encode_settings(settings)) == settings


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"type": 1}, "provider.type: names an unknown type of cloud"),
        ({"max_instances": "many"}, "provider.max_instances: Input should be a valid integer"),
        (
            {"min_instances": 3, "max_instances": 2},
            "provider.max_instances: must be at least min_instances (3), not 2",
        ),
        (
            {"max_idle_agent_period": "soon"},
            "provider.max_idle_agent_period: must be a duration such as 20m, not 'soon'",
        ),
        ({"on_demand_base": 2}, "provider.on_demand_base: must be a share from 0 to 1, not 2.0"),
        (
            {"max_idle_agent_period": float("inf")},
            "provider.max_idle_agent_period: must be a duration such as 20m, not inf",
        ),
        (
            {"max_agent_starting_period": "9" * 400 + "d"},
            "provider.max_agent_starting_period: must be a duration such as 20m, not '999",
        ),
        ({"offerings": [1]}, "provider.offerings: each must be a map"),
        ({"offerings": 1}, "provider.offerings: must be a list"),
        ({"offerings": {"instance_type": "a"}}, "provider.offerings: must be a list"),
        ({"offerings": [{}]}, "provider.offerings.instance_type: Field required"),
        (
            {"offerings": [{"instance_type": "a"}] * 2},
            "provider.offerings: contains the same offering twice",
        ),
    ],
)
def test_invalid_setting_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsInvalid) as caught:
        _read(**fields)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("text", ["", "[]", "nonsense", "[" * 100_000])
def test_rejects_settings_without_a_map(text: str) -> None:
    with pytest.raises(SettingsInvalid):
        parse_provider_settings(text)
