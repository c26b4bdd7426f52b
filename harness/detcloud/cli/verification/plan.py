"""The plan of a self-test: the instances to launch, with time and cost."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from detcloud.shared.errors import DetcloudError

# Estimates: boot, image of the trial, check, and the end of the instance.
CHECK_MINUTES: Final = 9.0
# The same instance trains until the notice, and a second instance boots and resumes.
NOTICE_MINUTES: Final = 14.0
# With a role, AWS's Fault Injection Service charges 0.10 $ for each minute of its two minutes.
FAULT_SERVICE_COST: Final = 0.20
_SPOT: Final = "spot"


@dataclass(frozen=True)
class PlannedPool:
    """A pool that the self-test checks."""

    pool: str
    instance_type: str
    """The type that the pool would launch first."""
    zone: str
    market: str
    """`spot` or `on_demand`."""
    slots: int
    """The number of slots of the check: 2 if the type has several slots, otherwise 1."""
    price_per_hour: float
    """The price in dollars; 0 if the cluster knows no price."""
    has_cpu_slots: bool = False
    """Whether the pool's instances without a GPU have a slot."""
    has_notice: bool = False
    """Whether the notice is tested in this pool."""

    @property
    def minutes(self) -> float:
        """The estimated sum of the minutes of all instances in this pool."""
        return CHECK_MINUTES + (NOTICE_MINUTES if self.has_notice else 0.0)

    @property
    def cost(self) -> float:
        """The estimated cost in dollars; 0 if the price is unknown."""
        return self.price_per_hour * self.minutes / 60

    def to_json(self) -> dict[str, Any]:
        """Return the fields, the minutes and the cost."""
        return {
            "pool": self.pool,
            "instance_type": self.instance_type,
            "zone": self.zone,
            "market": self.market,
            "slots": self.slots,
            "price_per_hour": self.price_per_hour,
            "minutes": self.minutes,
            "cost": round(self.cost, 4),
            "has_notice": self.has_notice,
        }


@dataclass(frozen=True)
class Plan:
    """The pools that a self-test checks, and the pools that a self-test leaves out."""

    pools: tuple[PlannedPool, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)
    """The reason for each pool that cannot be checked, by the pool's name."""
    extra_cost: float = 0.0
    """The cost of other services, in dollars."""

    @property
    def cost(self) -> float:
        """The estimated cost in dollars."""
        return sum(pool.cost for pool in self.pools) + self.extra_cost

    @property
    def notice_pool(self) -> PlannedPool | None:
        """The pool of the notice. None if no notice is planned."""
        return next((pool for pool in self.pools if pool.has_notice), None)


def make_plan(
    pools: Iterable[Mapping[str, Any]],
    cloud: str,
    chosen: Collection[str] = (),
    *,
    has_notice: bool = True,
    has_fault_service: bool = False,
) -> Plan:
    """Return the plan for the pools of a cloud.

    A pool without a provider of the cloud is left out without a reason. The notice is planned in
    the cheapest pool with spot instances, or else in the cheapest pool.

    Args:
        pools: the descriptions of pools, with `fleet`, as the API returns them.
        cloud: the cloud's name, which is also the type of the pools' providers.
        chosen: the names of the pools to check; empty for all pools.
        has_notice: whether to test a notice.
        has_fault_service: whether AWS's Fault Injection Service sends the notice.

    Raises:
        DetcloudError: a chosen pool does not exist or has no provider of the cloud, or no pool can
            be checked.
    """
    own = {str(pool["name"]): pool for pool in pools if _provider(pool).get("type") == cloud}
    for name in sorted(set(chosen) - set(own)):
        known = ", ".join(sorted(own)) or "none"
        raise DetcloudError(f"the cluster has no pool {name} on {cloud}; there is {known}")
    planned, skipped = [], {}
    for name, pool in own.items():
        if chosen and name not in chosen:
            continue
        found = _plan_pool(pool)
        if isinstance(found, str):
            skipped[name] = found
        else:
            planned.append(found)
    if not planned:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in skipped.items())
        raise DetcloudError(
            f"no pool can be checked: {reasons or f'the cluster has no pool on {cloud}'}"
        )
    if has_notice:
        planned = _with_notice(planned)
    extra = FAULT_SERVICE_COST if has_notice and has_fault_service else 0.0
    return Plan(tuple(planned), skipped, extra)


def check_cost(plan: Plan, cost_max: float) -> None:
    """Raise DetcloudError if the plan costs more than `cost_max` dollars or a price is unknown.

    The message names the pools to leave out, and the options that choose the other pools.
    """
    unknown = [pool.pool for pool in plan.pools if not pool.price_per_hour]
    if unknown:
        raise DetcloudError(
            f"the price of pool {', '.join(unknown)} is unknown, so the cost cannot be limited; "
            f"{_remedy(plan, unknown)}"
        )
    if plan.cost <= cost_max:
        return
    left_out, rest = _pools_to_leave_out(plan, cost_max)
    names = ", ".join(f"{pool.pool} ({pool.cost:.2f} $)" for pool in left_out)
    hint = (
        f"leave out {names}: {_options(rest)}" if rest else "no pool is cheap enough: --skip notice"
    )
    raise DetcloudError(
        f"the plan costs {plan.cost:.2f} $, more than --max-cost {cost_max:.2f}; {hint}, or raise "
        "--max-cost"
    )


def _plan_pool(pool: Mapping[str, Any]) -> PlannedPool | str:
    """Return the plan of a pool, or the reason why the pool cannot be checked."""
    if pool["state"] != "OPEN":
        return f"the pool accepts no jobs: {pool['state']}"
    offerings = pool.get("offerings") or []
    # The cheapest offerings come first; the provisioner skips an offering after a failure.
    failing = {health["offering"] for health in pool["fleet"]["offerings"]}
    able = [offering for offering in offerings if offering["offering"] not in failing]
    spot_first = sorted(able or offerings, key=lambda offering: offering["market"] != _SPOT)
    if not spot_first:
        return "the cluster has no offering of the pool yet: try again in two minutes"
    first = spot_first[0]
    if int(first["slots"]) < 1:
        return "its instances have no slots: set `cpu_slots_allowed`"
    return PlannedPool(
        str(pool["name"]),
        str(first["instance_type"]),
        str(first["zone"]),
        str(first["market"]),
        min(2, int(first["slots"])),
        float(first["price_per_hour"]),
        bool(_provider(pool).get("cpu_slots_allowed")),
    )


def _with_notice(pools: list[PlannedPool]) -> list[PlannedPool]:
    """Return the pools with the notice in the cheapest pool, spot pools first."""
    best = min(pools, key=lambda pool: (pool.market != _SPOT, pool.price_per_hour, pool.pool))
    return [replace(pool, has_notice=pool is best) for pool in pools]


def _pools_to_leave_out(plan: Plan, cost_max: float) -> tuple[list[PlannedPool], list[PlannedPool]]:
    """Return the dearest pools, and the cheapest pools that fit into `cost_max` together."""
    kept: list[PlannedPool] = []
    by_cost = sorted(plan.pools, key=lambda pool: (pool.cost, pool.pool))
    for pool in by_cost:
        if plan.extra_cost + sum(one.cost for one in kept) + pool.cost > cost_max:
            break
        kept.append(pool)
    return by_cost[len(kept) :], kept


def _remedy(plan: Plan, without: Collection[str]) -> str:
    """Return the hint that leaves out pools."""
    rest = [pool for pool in plan.pools if pool.pool not in without]
    return f"leave them out: {_options(rest)}" if rest else "set `price_per_hour` of its offerings"


def _options(pools: Iterable[PlannedPool]) -> str:
    """Return the options that choose pools, for example `--pool a --pool b`."""
    return " ".join(f"--pool {pool.pool}" for pool in pools)


def _provider(pool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the provider of a pool's configuration; empty without a provider."""
    provider: Mapping[str, Any] = pool["config"].get("provider") or {}
    return provider
