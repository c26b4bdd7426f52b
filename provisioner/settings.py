"""Parsing of a pool's provider settings, and the encoding of settings in fleet rows.

The input is JSON with the field names of the cluster's configuration, which has been validated. An
unusable value raises SettingsInvalid, which names the field.
"""

import json
import re
from collections.abc import Mapping
from math import inf
from typing import Any

from pydantic import ValidationError

from control_plane.adapters import lazy_adapter
from control_plane.fleet.records import Offering
from provisioner.model import ProvisionerSettings

_UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|d|h|m|s)")
_RETRIES = "launch_error_retries"
_FIELD_NAMES = {
    "min_instances": "min_instances",
    "max_instances": "max_instances",
    "max_idle_agent_period": "idle_ms_max",
    "max_agent_starting_period": "starting_ms_max",
    "launch_error_limit": "launch_error_limit",
    "on_demand_fallback": "on_demand_fallback",
    "on_demand_base": "on_demand_base",
}

_SETTINGS = lazy_adapter(ProvisionerSettings)
_OFFERING = lazy_adapter(Offering)


class SettingsInvalid(ValueError):
    """An unusable provider setting. The message names the field and the expected value."""


def parse_provider_settings(text: str) -> ProvisionerSettings:
    """Parse a pool's `provider` section, a JSON object with `type` and the settings.

    A period is a text such as `20m`, or a number of seconds. Determined's `launch_error_retries`
    sets `launch_error_limit` to one more, unless `launch_error_limit` is given. Values of
    `launch_error_retries` other than positive integers are ignored. A missing field or null has the
    default; `type` is required. Unknown fields are the cloud's own and go unchecked into `section`,
    as JSON with sorted keys. The kind of cloud is not checked either.

    Raises:
        SettingsInvalid: the text is no JSON object, `type` is missing or no text, a value is wrong,
            or the values contradict each other; the message names the first field.
    """
    fields = _parse_object(text)
    kind = fields.pop("type", None)
    if not isinstance(kind, str):
        raise SettingsInvalid("provider.type: names an unknown type of cloud")
    parsed: dict[str, Any] = {"kind": kind}
    for name, ours in _FIELD_NAMES.items():
        value = fields.pop(name, None)
        if value is not None:
            parsed[ours] = _parse_duration_ms(name, value) if ours.endswith("_ms_max") else value
    retries = fields.pop(_RETRIES, 0)
    if isinstance(retries, int) and retries > 0:
        parsed.setdefault("launch_error_limit", retries + 1)
    offerings = fields.pop("offerings", None) or []
    if not isinstance(offerings, list):
        raise SettingsInvalid("provider.offerings: must be a list of offerings")
    parsed["offerings"] = tuple(map(_parse_offering, offerings))
    parsed["section"] = json.dumps(fields, sort_keys=True)
    return _validate_settings(parsed)


def encode_settings(settings: ProvisionerSettings) -> str:
    """Encode settings as JSON for a fleet's row, without default values.

    Equal settings give equal texts. `decode_settings` is the inverse.
    """
    return _SETTINGS().dump_json(settings, exclude_defaults=True).decode()


def decode_settings(text: str) -> ProvisionerSettings:
    """Decode the settings that `encode_settings` wrote.

    Missing fields have the defaults, and unknown fields are ignored.

    Raises:
        SettingsInvalid: the text is no JSON object, a value is wrong, or `kind` is missing.
    """
    return _validate_settings(_parse_object(text))


def _validate_settings(fields: Mapping[str, Any]) -> ProvisionerSettings:
    """Return settings with the given fields; other fields have the defaults.

    Unknown fields are ignored.

    Raises:
        SettingsInvalid: `kind` is missing, a value has a wrong type, `min_instances` is negative
            or exceeds `max_instances`, `on_demand_base` is no share from 0 to 1, or two offerings
            have the same name. Types are not strict: a text such as "5" counts as a number.
    """
    try:
        settings = _SETTINGS().validate_python(fields)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, ("provider", *first["loc"])))
        raise SettingsInvalid(f"{place}: {first['msg']}") from None
    if not 0 <= settings.min_instances <= settings.max_instances:
        least, most = settings.min_instances, settings.max_instances
        text = f"must be at least min_instances ({least}), not {most}"
        raise SettingsInvalid(f"provider.max_instances: {text}")
    if not 0 <= settings.on_demand_base <= 1:
        text = f"must be a share from 0 to 1, not {settings.on_demand_base}"
        raise SettingsInvalid(f"provider.on_demand_base: {text}")
    names = [offering.name for offering in settings.offerings]
    if len(set(names)) < len(names):
        raise SettingsInvalid("provider.offerings: contains the same offering twice")
    return settings


def _parse_object(text: str) -> dict[str, Any]:
    """Parse a JSON object. Raises SettingsInvalid for any other text."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise SettingsInvalid("provider: must be a map")
    return fields


def _parse_offering(fields: object) -> Offering:
    """Parse an offering. The default name is `TYPE/ZONE/MARKET`, without an empty zone.

    Defaults: one slot, on demand, any zone, unknown price. Unknown fields are ignored.

    Raises:
        SettingsInvalid: the value is no map, lacks the instance type, or has a wrong value.
    """
    if not isinstance(fields, dict):
        raise SettingsInvalid("provider.offerings: each must be a map")
    with_defaults = {"zone": "", "market": "on_demand", "slots": 1, **fields}
    parts = (str(with_defaults.get(name, "")) for name in ("instance_type", "zone", "market"))
    name = "/".join(filter(None, parts))
    try:
        return _OFFERING().validate_python({"name": name, **with_defaults})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, ("provider.offerings", *first["loc"])))
        raise SettingsInvalid(f"{place}: {first['msg']}") from None


def _parse_duration_ms(name: str, value: object) -> int:
    """Convert a number of seconds above 0, or a text like `1h30m` or `0s`, to milliseconds.

    Units are d, h, m, s and ms, and numbers may have a fraction. Fractions of a millisecond are cut
    off, so the result may be 0. Raises SettingsInvalid, naming the setting `name`, for any other
    value.
    """
    pieces = _DURATION_PART.findall(value) if isinstance(value, str) else []
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        time_ms: float = value * 1_000
    elif pieces and "".join(map("".join, pieces)) == value:
        time_ms = sum(float(count) * _UNITS_MS[unit] for count, unit in pieces)
    else:
        time_ms = inf
    if time_ms == inf:
        raise SettingsInvalid(f"provider.{name}: must be a duration such as 20m, not {value!r}")
    return int(time_ms)
