"""Checks whether an account can buy and boot the instances of the pools' offerings. Pure.

Instance types, zones, vCPU quotas and images are compared with facts about the account.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from control_plane.aws import default_image
from control_plane.aws.pool_provider import AwsProvider
from control_plane.aws.vcpu_quotas import VcpuQuota, quota_url, quotas_url, vcpu_quota
from control_plane.config.pools import ClusterConfig
from control_plane.fleet.gpu_models import ImageProblem, find_gpu_model
from control_plane.fleet.records import Market
from infra.aws.account_facts import PoolFacts, TypeFacts
from infra.aws.file_system_checks import find_file_system_problems
from infra.aws.pool_checks import aws_pools, offerings_of, zones_in_use
from infra.aws.settings import Settings
from infra.findings import Finding, Level, Unknown, fine_finding, read_fact

CAPACITY_BLOCK = "capacity-block"
MARKETS = {"spot": "spot", "on_demand": "on-demand"}


class Purchase(NamedTuple):
    """A pool's offering: an instance type, a market and a zone."""

    pool: str
    """The name of the pool."""
    provider: AwsProvider
    """The pool's settings for AWS."""
    instance_type: str
    """EC2's name of the type."""
    market: str
    """`spot` or `on_demand`."""
    zone: str
    """Empty for any zone of the stack."""
    slots: int
    """The slots of one instance, according to the pool's configuration."""

    @property
    def usage_class(self) -> str:
        """EC2's name of the market: `spot`, `on-demand` or `capacity-block`."""
        if self.provider.capacity_block and self.market == Market.ON_DEMAND:
            return CAPACITY_BLOCK
        return MARKETS[self.market]


def check_pools(settings: Settings, cluster: ClusterConfig, facts: PoolFacts) -> list[Finding]:
    """Return findings about the account's plan and the pools' types, quotas, images, file systems.

    The plan (free or paid) is checked only if a pool runs on AWS, and the default image only if a
    pool uses it. An Unknown fact becomes a warning.
    """
    found: list[Finding] = []
    purchases = list(_purchases(cluster))
    if purchases:
        found += read_fact(facts.plan, "plan", _plan)
    for purchase in purchases:
        found += _type_findings(settings, purchase, facts)
    found += _quota_findings(settings, purchases, facts)
    if any(not item.provider.image_id for item in purchases):
        found += read_fact(facts.image, "image", lambda name: _image(settings, name))
    found += read_fact(
        facts.image_architectures,
        "images",
        lambda architectures: _own_images(purchases, facts, architectures),
    )
    return [*found, *find_file_system_problems(settings, cluster, facts)]


def _plan(plan: str) -> Iterator[Finding]:
    """Yield an error for the plan `FREE`, and nothing for "", an account without a plan.

    Otherwise yield a fine finding.
    """
    if plan == "FREE":
        text = "the account is on AWS's free plan, which allows only free-tier types"
        remedy = "aws freetier upgrade-account-plan --account-plan-type PAID --region us-east-1"
        yield Finding(Level.ERROR, "plan", text, remedy)
    elif plan:
        yield fine_finding("plan", "the account is on the paid plan")


def _purchases(cluster: ClusterConfig) -> Iterator[Purchase]:
    """Yield each offering of each pool on AWS."""
    for name, provider in aws_pools(cluster):
        for offering_config in offerings_of(provider):
            slots = offering_config.slots if provider.offerings else provider.slots_offered()[0]
            yield Purchase(
                name,
                provider,
                offering_config.instance_type,
                offering_config.market,
                offering_config.zone,
                slots,
            )


def _type_findings(settings: Settings, purchase: Purchase, facts: PoolFacts) -> Iterator[Finding]:
    """Yield the finding about the type of a purchase: the first error, or about the zones.

    Errors are a type that the region does not offer, a market or processor that does not fit, and a
    wrong number of slots. Unknown facts are a warning.
    """
    subject = f"pool {purchase.pool}, {purchase.instance_type} {purchase.usage_class}"
    if isinstance(facts.types, Unknown):
        yield from read_fact(facts.types, subject, lambda item: iter(()))
        return
    kind = facts.types.get(purchase.instance_type)
    if kind is None:
        text = f"{settings.region} does not offer this type"
        yield Finding(Level.ERROR, subject, text, "use another type, or another region")
        return
    problem = _incompatibility(purchase, kind)
    if problem:
        yield Finding(Level.ERROR, subject, problem.text, problem.remedy)
        return
    offered = kind.gpu_count or int(purchase.provider.cpu_slots_allowed)
    if (kind.gpu_count or not kind.gpus) and offered != purchase.slots:
        has = f"{kind.gpu_count} GPUs, each a slot," if kind.gpu_count else "no GPU"
        text = f"it has {has} and the pool counts {purchase.slots}: its agent offers {offered}"
        remedy = "set that number in `slots` of the offering or in provider.instance_slots"
        yield Finding(Level.ERROR, subject, text, remedy)
        return
    for finding in read_fact(
        facts.zones, subject, lambda zones: _zones(settings, subject, purchase, zones)
    ):
        is_fine = finding.level is Level.FINE
        yield replace(finding, text=f"{finding.text}: {_description(kind)}") if is_fine else finding


def _description(kind: TypeFacts) -> str:
    """Return a text with the type's GPUs, vCPUs, memory, local disks and network.

    Facts that EC2 does not report are left out.
    """
    models = ", ".join(dict.fromkeys(model for _, model in kind.gpus))
    return ", ".join(
        (
            *([f"{kind.gpu_count} GPUs ({models})"] if kind.gpu_count else []),
            f"{kind.vcpus} vCPUs",
            *([f"{kind.memory_mib // 1024} GiB of memory"] if kind.memory_mib else []),
            *([f"{kind.store_gb} GB of its own disks"] if kind.store_gb else []),
            *([f"a network of {kind.network}"] if kind.network else []),
        )
    )


def _incompatibility(purchase: Purchase, kind: TypeFacts) -> ImageProblem | None:
    """Return why the type cannot be bought in this market or boot the default image.

    Return None if nothing prevents a launch. A pool with its own image skips the checks of
    processor and GPU. The facts are EC2's, so that types outside the catalogue are checked too.
    """
    remedy = "use another type or another image"
    if purchase.usage_class not in kind.markets:
        text = f"it is sold only as {', '.join(sorted(kind.markets))}"
        return ImageProblem(text, "use another type or another market")
    if purchase.provider.image_id:
        return None
    if default_image.ARCHITECTURE not in kind.architectures:
        has = ", ".join(sorted(kind.architectures))
        text = f"its processor is {has}, and AWS's image is for {default_image.ARCHITECTURE}"
        return ImageProblem(text, remedy)
    for maker, name in kind.gpus:
        if maker != "NVIDIA":
            text = f"its accelerator is {maker}'s, but AWS's image has only NVIDIA's driver"
            return ImageProblem(text, remedy)
        model = find_gpu_model(name)
        if problem := default_image.find_gpu_problem(model) if model else None:
            return problem
    return None


def _zones(
    settings: Settings, subject: str, purchase: Purchase, zones: Mapping[str, frozenset[str]]
) -> Iterator[Finding]:
    """Yield an error if no zone in use offers the type, and a warning if only some zones do.

    Otherwise yield a fine finding. `zones` are the zones that offer each type.
    """
    offered = zones.get(purchase.instance_type, frozenset())
    used = [purchase.zone] if purchase.zone else list(zones_in_use(settings))
    without = [zone for zone in used if zone not in offered]
    elsewhere = f"it is offered in {', '.join(sorted(offered)) or 'no zone'}"
    where = settings.network.setting if settings.network else "detcloud:zones"
    if len(without) == len(used):
        text = f"not offered in {', '.join(used)}; {elsewhere}"
        yield Finding(Level.ERROR, subject, text, f"add a zone that offers the type to {where}")
    elif without:
        text = f"not offered in {', '.join(without)}; {elsewhere}"
        yield Finding(Level.WARNING, subject, text, f"add zones to {where} to find more machines")
    else:
        yield fine_finding(subject, f"offered in {', '.join(used)}")


def _quota_findings(
    settings: Settings, purchases: list[Purchase], facts: PoolFacts
) -> Iterator[Finding]:
    """Yield a finding for each vCPU quota that the purchases count against.

    A quota below the smallest instance is an error, and a quota below the pools' maximum a warning.
    Skip capacity blocks, which count against no quota. A type without a known quota is a warning.
    Yield nothing if the types are Unknown, about which each pool has a warning.
    """
    if isinstance(facts.types, Unknown):
        return
    users: dict[VcpuQuota, list[Purchase]] = {}
    unknown: set[str] = set()
    for purchase in purchases:
        quota = vcpu_quota(purchase.instance_type, Market(purchase.market))
        is_counted = purchase.usage_class != CAPACITY_BLOCK
        if quota is not None and is_counted and purchase.instance_type in facts.types:
            users.setdefault(quota, []).append(purchase)
        elif quota is None and is_counted:
            unknown.add(f"{purchase.instance_type} {purchase.usage_class}")
    for name in sorted(unknown):
        text = "could not be checked: AWS's guide names no vCPU quota for this type and market"
        remedy = f"look for the quota at {quotas_url('ec2', settings.region)}"
        yield Finding(Level.WARNING, f"quota of {name}", text, remedy)
    for quota, counted_purchases in users.items():
        fact = facts.quotas.get(quota.code, Unknown("servicequotas:GetServiceQuota", "not asked"))
        subject = f"quota {quota.code}"
        vcpus_of = {item: facts.types[item.instance_type].vcpus for item in counted_purchases}
        yield from read_fact(fact, subject, partial(_quota, settings, quota, vcpus_of))


def _quota(
    settings: Settings, quota: VcpuQuota, vcpus_of: dict[Purchase, int], vcpus: float
) -> Iterator[Finding]:
    """Yield the finding about a quota of `vcpus` vCPUs, against which the purchases count.

    `vcpus_of` has the vCPUs of one instance of each purchase. An error: no instance fits. A
    warning: an instance does not fit, or the pools' maximum does not. Otherwise a fine finding.
    """
    subject, remedy = (
        f"quota {quota.code}",
        f"request an increase at {quota_url(quota, settings.region)}",
    )
    smallest = min(vcpus_of, key=lambda item: vcpus_of[item])
    pools: dict[str, int] = {}
    for purchase, each in vcpus_of.items():
        pools[purchase.pool] = max(
            pools.get(purchase.pool, 0), each * purchase.provider.max_instances
        )
    wanted = sum(pools.values())
    known = f"{quota.name}: {vcpus:g} vCPUs"
    too_large = [purchase.instance_type for purchase, each in vcpus_of.items() if each > vcpus]
    if vcpus < vcpus_of[smallest]:
        text = f"{known}, and one {smallest.instance_type} has {vcpus_of[smallest]}"
        yield Finding(Level.ERROR, subject, text, remedy)
    elif too_large:
        text = f"{known}, too few for one {', '.join(sorted(set(too_large)))}"
        yield Finding(Level.WARNING, subject, text, remedy)
    elif vcpus < wanted:
        text = f"{known}, and the pools {', '.join(pools)} may want {wanted}"
        yield Finding(Level.WARNING, subject, text, remedy)
    else:
        yield fine_finding(subject, f"{known}, enough for the {wanted} of {', '.join(pools)}")


def _image(settings: Settings, image: str) -> Iterator[Finding]:
    """Yield an error if the region lacks the default image; `image` is then "".

    Otherwise yield a fine finding.
    """
    if image:
        yield fine_finding("image", f"AWS's Deep Learning Base AMI is {image}")
    else:
        text = f"{settings.region} has no parameter of AWS's Deep Learning Base AMI"
        yield Finding(Level.ERROR, "image", text, "name an image in provider.image_id of the pools")


def _own_images(
    purchases: list[Purchase], facts: PoolFacts, images: Mapping[str, str]
) -> Iterator[Finding]:
    """Yield a finding for each image that pools name, except SSM parameters (`resolve:`).

    An error: the image does not exist, or does not fit the processor of a type. Otherwise a fine
    finding. `images` has the architecture of each existing image.
    """
    named = {purchase.provider.image_id for purchase in purchases if purchase.provider.image_id}
    for image in sorted(named):
        if image.startswith("resolve:"):
            continue
        if image not in images:
            text = "it does not exist, or this account may not use it"
            yield Finding(
                Level.ERROR, f"image {image}", text, "name another image in provider.image_id"
            )
            continue
        kinds = sorted(
            {
                purchase.instance_type
                for purchase in purchases
                if purchase.provider.image_id == image
            }
        )
        wrong = [kind for kind in kinds if images[image] not in _architectures(kind, facts)]
        if wrong:
            text = f"it is for {images[image]}, but not for {', '.join(wrong)}"
            yield Finding(Level.ERROR, f"image {image}", text, "use another type or image")
        else:
            yield fine_finding(f"image {image}", f"for {images[image]}, as {', '.join(kinds)}")


def _architectures(kind: str, facts: PoolFacts) -> frozenset[str]:
    """Return the architectures of the instance type `kind`, derived from the name if unknown."""
    known = None if isinstance(facts.types, Unknown) else facts.types.get(kind)
    return known.architectures if known else frozenset({default_image.architecture_by_name(kind)})
