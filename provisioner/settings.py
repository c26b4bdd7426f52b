"""How a pool's provider settings are read: JSON as the cluster's configuration writes it.

What is written here has been checked there; what this module cannot use it refuses by name.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from control_plane.adapters import adapter
from control_plane.fleet.records import Offering
from provisioner.model import ProvisionerSettings

_UNITS_MS = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_PIECE = re.compile(r"(\d+(?:\.\d+)?)(ms|d|h|m|s)")
_RETRIES = "launch_error_retries"
_NAMES = {
    "min_instances": "min_instances",
    "max_instances": "max_instances",
    "max_idle_agent_period": "idle_ms_max",
    "max_agent_starting_period": "starting_ms_max",
    "launch_error_limit": "launch_error_limit",
    "on_demand_fallback": "on_demand_fallback",
    "on_demand_base": "on_demand_base",
}

_SETTINGS = adapter(ProvisionerSettings)
_OFFERING = adapter(Offering)


class SettingsInvalid(ValueError):
    """The settings are none; the message names the place and what was expected."""


def provisioner_settings(text: str) -> ProvisionerSettings:
    """The settings in the configuration's words: `type`, the numbers, `offerings`, and the fields
    of the cloud itself. Periods are texts such as 20m, or seconds. Raises SettingsInvalid.
    """
    fields = _object(text)
    kind = fields.pop("type", None)
    if not isinstance(kind, str):
        raise SettingsInvalid("provider.type: names no kind of cloud")
    found: dict[str, Any] = {"kind": kind}
    for name, ours in _NAMES.items():
        value = fields.pop(name, None)
        if value is not None:
            found[ours] = _milliseconds(name, value) if ours.endswith("_ms_max") else value
    retries = fields.pop(_RETRIES, 0)
    if isinstance(retries, int) and retries > 0:
        found.setdefault("launch_error_limit", retries + 1)
    found["offerings"] = tuple(map(_offering, fields.pop("offerings", None) or ()))
    found["section"] = json.dumps(fields, sort_keys=True)
    return _checked(found)


def written_settings(settings: ProvisionerSettings) -> str:
    """Settings as they are kept with a fleet."""
    return _SETTINGS().dump_json(settings, exclude_defaults=True).decode()


def read_settings(text: str) -> ProvisionerSettings:
    """The way back. Raises SettingsInvalid."""
    return _checked(_object(text))


def _checked(fields: Mapping[str, Any]) -> ProvisionerSettings:
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
        raise SettingsInvalid("provider.offerings: two of them are the same")
    return settings


def _object(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise SettingsInvalid("provider: must be a map")
    return fields


def _offering(fields: object) -> Offering:
    if not isinstance(fields, dict):
        raise SettingsInvalid("provider.offerings: each must be a map")
    given = {"zone": "", "market": "on_demand", "slots": 1, **fields}
    parts = (str(given.get(name, "")) for name in ("instance_type", "zone", "market"))
    name = "/".join(filter(None, parts))
    try:
        return _OFFERING().validate_python({"name": name, **given})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, ("provider.offerings", *first["loc"])))
        raise SettingsInvalid(f"{place}: {first['msg']}") from None


def _milliseconds(name: str, value: object) -> int:
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return int(value * 1_000)
    pieces = _PIECE.findall(value) if isinstance(value, str) else []
    if not pieces or "".join(map("".join, pieces)) != value:
        raise SettingsInvalid(f"provider.{name}: must be a duration such as 20m, not {value!r}")
    return int(sum(float(count) * _UNITS_MS[unit] for count, unit in pieces))
