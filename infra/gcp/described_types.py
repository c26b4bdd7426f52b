"""The machine types that a cluster configuration names, and what Compute Engine says of them: it is
asked during a deployment, and what it said is deployed with the pools, so that nobody has to ask it
when instances are launched.

The configuration is a tree that nobody has checked yet: without what is found here a type that the
cluster does not know would be refused. What has another form than expected is left to that check.
"""

import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, NamedTuple

from control_plane.config.eras import Tree
from control_plane.gcp.machine_types import N1_DEFAULT, find_machine_type, parse_instance_type
from control_plane.gcp.pool_provider import DescribedTypes, MachineTypeConfig
from control_plane.gcp.zones import region_of
from infra.gcp.account_facts import TypeFacts
from infra.gcp.machine_catalog import MachineCatalog

NAMES_MAX: Final = 3
ZONES_MAX: Final = 6
_LIKENESS_MIN: Final = 0.5
_FIELD: Final = "machine_types"


class NamedType(NamedTuple):
    """A machine type that a pool names; `needs_facts` where nobody but Compute Engine can tell how
    many slots it has.
    """

    pool: str
    region: str
    name: str
    needs_facts: bool


def find_named_types(tree: Tree, own_region: str) -> list[NamedType]:
    """Return the machine types of the pools on Google Cloud; `own_region` is that of pools without
    one.
    """
    found = []
    for pool, provider in _providers(tree):
        region = _text(provider, "region") or region_of(_text(provider, "zone")) or own_region
        for name, slots in _named_types(provider):
            is_known = find_machine_type(name) is not None or name in _map(provider, _FIELD)
            named = NamedType(pool, region, name, needs_facts=slots is None and not is_known)
            found.append(named)
    return found


def add_described_types(tree: Tree, described: DescribedTypes) -> Tree:
    """Return the configuration, each pool with what is known of the types that it names; what a
    pool says itself takes precedence.
    """
    if not described:
        return tree
    completed = dict(_providers_by_place(tree))
    if not completed:
        return tree
    pools = list(tree["resource_pools"])
    for place, provider in completed.items():
        named = {name for name, _ in _named_types(provider)}
        added = {
            name: machine_type_config.model_dump()
            for name, machine_type_config in described.items()
            if name in named
        }
        if added and isinstance(provider.get(_FIELD, {}), Mapping):
            types = {**added, **_map(provider, _FIELD)}
            pools[place] = {**pools[place], "provider": {**provider, _FIELD: types}}
    return {**tree, "resource_pools": pools}


def read_described_types(
    named: Collection[NamedType], catalog: MachineCatalog
) -> tuple[dict[str, MachineTypeConfig], list[str]]:
    """Ask Compute Engine for machine types; returns what it says of those that it has, and a line
    for each type that a pool cannot do without and its region has not. Raises GoogleError.
    """
    facts = catalog.read_types({named_type.name for named_type in named})
    described = {name: _describe(fact) for (_, name), fact in facts.items()}
    problems = []
    for pool, region, name, needs_facts in dict.fromkeys(named):
        if not needs_facts or (region, name) in facts:
            continue
        zones = {zone for (_, other), one in facts.items() if other == name for zone in one.zones}
        missing = describe_missing(name, region, zones, catalog.list_names(region))
        problems.append(f"pool {pool}: {name}: {'; '.join(missing)}")
    return described, problems


def describe_missing(
    name: str, region: str, zones: Collection[str], names: Collection[str]
) -> tuple[str, str]:
    """Return what to say of a machine type that a region has not, and what to do: `zones` are those
    that have it, and `names` the types that the region has.
    """
    text = f"{region} does not offer this type"
    if zones:
        more = f" and {len(zones) - ZONES_MAX} more" if len(zones) > ZONES_MAX else ""
        text = f"{text}; {', '.join(sorted(zones)[:ZONES_MAX])}{more} do"
    near = difflib.get_close_matches(name, sorted(names), n=NAMES_MAX, cutoff=_LIKENESS_MIN)
    like = f", such as {', '.join(near)}" if near else ""
    return text, f"use another type{like}, or another region"


def _describe(facts: TypeFacts) -> MachineTypeConfig:
    return MachineTypeConfig(
        vcpus=facts.vcpus,
        memory_gb=facts.memory_mb / 1024,
        gpus=facts.gpus,
        accelerator=facts.accelerator,
    )


def _providers(tree: Tree) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for place, provider in _providers_by_place(tree):
        yield _text(tree["resource_pools"][place], "pool_name"), provider


def _providers_by_place(tree: Tree) -> Iterator[tuple[int, Mapping[str, Any]]]:
    pools = tree.get("resource_pools")
    for place, pool in enumerate(pools if isinstance(pools, list | tuple) else ()):
        provider = _map(pool, "provider") if isinstance(pool, Mapping) else {}
        if provider.get("type") == "gcp":
            yield place, provider


def _named_types(provider: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield the machine types of a pool, and the slots that it says of each, None for none."""
    offerings = provider.get("offerings")
    offered: list[tuple[object, object]] = [
        (offering.get("instance_type"), offering.get("slots"))
        for offering in (offerings if isinstance(offerings, list | tuple) else ())
        if isinstance(offering, Mapping)
    ]
    if not offerings:
        machine = _map(provider, "instance_type").get("machine_type", N1_DEFAULT)
        offered.append((machine, provider.get("instance_slots")))
    for name, slots in offered:
        instance = parse_instance_type(name) if isinstance(name, str) else None
        if instance is not None:
            yield instance.machine_type, slots if slots is not None else instance.number or None


def _map(holder: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    found = holder.get(field)
    return found if isinstance(found, Mapping) else {}


def _text(holder: Mapping[str, Any], field: str) -> str:
    found = holder.get(field)
    return found if isinstance(found, str) else ""
