"""Checks whether a stack and the stack's pools can run in an AWS account. Pure.

Each check turns a fact about the account into findings with a text and a remedy.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

from control_plane.aws.pool_provider import AwsProvider
from control_plane.aws.vcpu_quotas import (
    VPC_QUOTA,
    VcpuQuota,
    quota_url,
    quotas_url,
    vcpu_quota,
)
from control_plane.config.pools import ClusterConfig
from control_plane.fleet.records import Market
from infra.aws import default_image
from infra.aws.account_facts import (
    AccountFacts,
    Caller,
    Concurrency,
    DiskKey,
    DryRun,
    KeyFacts,
    NetworkCount,
    PoolFacts,
    TypeFacts,
)
from infra.aws.deployer import check_actions
from infra.aws.file_system_checks import find_file_system_problems
from infra.aws.pool_checks import aws_pools, offerings_of, zones_in_use
from infra.aws.settings import Settings
from infra.findings import Finding, Level, Unknown, fine_finding, read_fact

T = TypeVar("T")

# Lambda refuses a reservation that leaves fewer unreserved concurrent runs.
UNRESERVED_MIN = 100
# A thousand agents' syncs occupy about four runs; the rest is for reconnects after an outage.
API_CONCURRENCY = 50
# One run each for checkpoint_gc and suggest.
RESERVED_BESIDE_TICKS = 2
CAPACITY_BLOCK = "capacity-block"
MARKETS = {"spot": "spot", "on_demand": "on-demand"}
OWN_KEY_REMEDY = "name it in detcloud:kmsKey, which gives the tick and the market their grants"
# EC2's error code for a dry run that passed all checks.
WOULD_WORK = "DryRunOperation"
_BY_ORGANIZATION = re.compile(r"explicit deny in a (service|resource) control policy")


class Purchase(NamedTuple):
    """A pool's offering: an instance type, a market and a zone."""

    pool: str
    provider: AwsProvider
    instance_type: str
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


def check_facts(settings: Settings, cluster: ClusterConfig, facts: AccountFacts) -> list[Finding]:
    """Return findings about credentials, permissions, pools, disks, keys, network and limits.

    If the caller is Unknown, return only an error about the credentials. Any other Unknown fact
    becomes a warning.
    """
    if isinstance(facts.caller, Unknown):
        # GetCallerIdentity needs no permission, so the call fails only with invalid credentials.
        text = f"AWS accepts no credentials: {facts.caller.why}"
        remedy = "log in, or set a profile in AWS_PROFILE"
        return [Finding(Level.ERROR, "credentials", text, remedy)]
    found = [
        *_caller(settings, facts.caller),
        *read_fact(facts.denied, "permissions", _permissions),
    ]
    found += check_pools(settings, cluster, facts)
    found += check_disks(facts, settings.kms_key, OWN_KEY_REMEDY)
    if settings.kms_key:
        if facts.key is not None:
            found += read_fact(facts.key, "key", lambda key: _own_key(settings, key))
        found += read_fact(facts.has_spot_role, "spot role", _spot_role)
    if facts.networks is not None:
        found += read_fact(
            facts.networks, "network", lambda networks: _networks(settings, networks)
        )
    found += read_fact(
        facts.concurrency, "concurrency", lambda concurrency: _concurrency(settings, concurrency)
    )
    return [*found, *check_launch(cluster, facts)]


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


def check_disks(facts: PoolFacts, kms_key: str, own_key_remedy: str) -> Iterator[Finding]:
    """Yield the finding about the key that encrypts the disks of instances.

    A `kms_key` from the settings is fine, and so is AWS's own default key. Without `kms_key`, a
    customer-managed default key is an error with the remedy `own_key_remedy`, and an Unknown
    default key is a warning.
    """
    if kms_key:
        yield fine_finding("disks", "encrypted with detcloud:kmsKey")
    else:
        yield from read_fact(facts.disk_key, "disks", lambda key: _disk_key(key, own_key_remedy))


def check_launch(cluster: ClusterConfig, facts: PoolFacts) -> Iterator[Finding]:
    """Yield the finding about EC2's answer to a dry-run launch, or nothing without AWS pools."""
    if any(aws_pools(cluster)):
        yield from read_fact(facts.dry_run, "launch", _launch)


def _caller(settings: Settings, caller: Caller) -> Iterator[Finding]:
    if caller.account != settings.account:
        text = (
            f"they belong to account {caller.account}, but detcloud:account is {settings.account}"
        )
        yield Finding(
            Level.ERROR, "credentials", text, "use credentials of the account in the settings"
        )
    else:
        yield fine_finding("credentials", f"{caller.arn} deploys")


def _permissions(denied: tuple[str, ...]) -> Iterator[Finding]:
    if denied:
        shown = ", ".join(denied[:8]) + (f" and {len(denied) - 8} more" if denied[8:] else "")
        text = f"the deployer may not {shown}"
        remedy = "`detcloud deploy policy aws` prints the policy that a deployer needs"
        # A deployment works without the actions that only the check calls. A deployer's policy
        # from an older release may lack actions that a newer check calls.
        is_needed = not check_actions().issuperset(denied)
        level = Level.ERROR if is_needed else Level.WARNING
        yield Finding(level, "permissions", text, remedy)
    else:
        yield fine_finding(
            "permissions", "the deployer has all permissions that a deployment needs"
        )


def _plan(plan: str) -> Iterator[Finding]:
    if plan == "FREE":
        text = "it is on AWS's free plan, with which EC2 launches only free-tier types"
        remedy = "aws freetier upgrade-account-plan --account-plan-type PAID --region us-east-1"
        yield Finding(Level.ERROR, "plan", text, remedy)
    elif plan:
        yield fine_finding("plan", "the account is on the paid plan")


def _purchases(cluster: ClusterConfig) -> Iterator[Purchase]:
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
    subject = f"pool {purchase.pool}, {purchase.instance_type} {purchase.usage_class}"
    if isinstance(facts.types, Unknown):
        yield from read_fact(facts.types, subject, lambda item: iter(()))
        return
    kind = facts.types.get(purchase.instance_type)
    if kind is None:
        text = f"{settings.region} does not offer this type"
        yield Finding(Level.ERROR, subject, text, "use another type, or another region")
        return
    problem = _incompatibility(settings, purchase, kind)
    if problem:
        yield Finding(Level.ERROR, subject, problem, "use another type or another image")
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


def _incompatibility(settings: Settings, purchase: Purchase, kind: TypeFacts) -> str:
    """Return why the type cannot be bought in this market or boot the default image.

    Return "" if it can. A pool with its own image skips the checks of processor and GPU.
    """
    if purchase.usage_class not in kind.markets:
        return f"it is sold only as {', '.join(sorted(kind.markets))}"
    if purchase.provider.image_id:
        return ""
    if default_image.ARCHITECTURE not in kind.architectures:
        has = ", ".join(sorted(kind.architectures))
        return f"its processor is {has}, and AWS's image is for {default_image.ARCHITECTURE}"
    for maker, model in kind.gpus:
        if maker != "NVIDIA":
            return f"its accelerator is {maker}'s, but AWS's image has only NVIDIA's driver"
        if model in default_image.GPUS_WITHOUT_DRIVER:
            return f"its GPU, {model}, is older than those that the driver of AWS's image knows"
    return ""


def _zones(
    settings: Settings, subject: str, purchase: Purchase, zones: Mapping[str, frozenset[str]]
) -> Iterator[Finding]:
    offered = zones.get(purchase.instance_type, frozenset())
    used = [purchase.zone] if purchase.zone else list(zones_in_use(settings))
    without = [zone for zone in used if zone not in offered]
    elsewhere = f"it is offered in {', '.join(sorted(offered)) or 'no zone'}"
    where = settings.network.setting if settings.network else "detcloud:zones"
    if len(without) == len(used):
        text = f"none of {', '.join(used)} has it; {elsewhere}"
        yield Finding(Level.ERROR, subject, text, f"add one of those zones to {where}")
    elif without:
        text = f"{', '.join(without)} has none of it; {elsewhere}"
        yield Finding(Level.WARNING, subject, text, f"more zones in {where} are more machines")
    else:
        yield fine_finding(subject, f"offered in {', '.join(used)}")


def _quota_findings(
    settings: Settings, purchases: list[Purchase], facts: PoolFacts
) -> Iterator[Finding]:
    """Yield a finding for each vCPU quota that the purchases count against.

    A quota below the smallest instance is an error, and a quota below the pools' maximum a warning.
    Skip capacity blocks, which count against no quota. Yield nothing if the types are Unknown.
    """
    if isinstance(facts.types, Unknown):
        return
    users: dict[VcpuQuota, list[Purchase]] = {}
    for purchase in purchases:
        quota = vcpu_quota(purchase.instance_type, Market(purchase.market))
        is_counted = purchase.usage_class != CAPACITY_BLOCK
        if quota is not None and is_counted and purchase.instance_type in facts.types:
            users.setdefault(quota, []).append(purchase)
    for quota, those in users.items():
        fact = facts.quotas.get(quota.code, Unknown("servicequotas:GetServiceQuota", "not asked"))
        subject = f"quota {quota.code}"
        one = {item: facts.types[item.instance_type].vcpus for item in those}
        yield from read_fact(fact, subject, partial(_quota, settings, quota, one))


def _quota(
    settings: Settings, quota: VcpuQuota, vcpus_of: dict[Purchase, int], vcpus: float
) -> Iterator[Finding]:
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
    if image:
        yield fine_finding("image", f"AWS's Deep Learning Base AMI is {image}")
    else:
        text = f"{settings.region} has no parameter of AWS's Deep Learning Base AMI"
        yield Finding(Level.ERROR, "image", text, "name an image in provider.image_id of the pools")


def _architectures(kind: str, facts: PoolFacts) -> frozenset[str]:
    """Return the architectures of the instance type `kind`, derived from the name if unknown."""
    known = None if isinstance(facts.types, Unknown) else facts.types.get(kind)
    return known.architectures if known else frozenset({default_image.architecture_by_name(kind)})


def _own_images(
    purchases: list[Purchase], facts: PoolFacts, images: Mapping[str, str]
) -> Iterator[Finding]:
    named = {purchase.provider.image_id for purchase in purchases if purchase.provider.image_id}
    for image in sorted(named):
        if image.startswith("resolve:"):
            continue
        if image not in images:
            text = "it does not exist, or this account may not use it"
            yield Finding(Level.ERROR, f"image {image}", text, "name another in provider.image_id")
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
            text = f"it is for {images[image]}, which {', '.join(wrong)} is not"
            yield Finding(Level.ERROR, f"image {image}", text, "use another type or image")
        else:
            yield fine_finding(f"image {image}", f"for {images[image]}, as {', '.join(kinds)}")


def _disk_key(disk_key: DiskKey, own_key_remedy: str) -> Iterator[Finding]:
    if disk_key.is_own:
        text = (
            f"this account's default key, {disk_key.key}, is its own: spot instances end as they "
            "start unless EC2's spot market may use it"
        )
        yield Finding(Level.ERROR, "disks", text, own_key_remedy)
    else:
        yield fine_finding("disks", "encrypted with AWS's own key")


def _own_key(settings: Settings, key: KeyFacts) -> Iterator[Finding]:
    service = f"logs.{settings.region}.amazonaws.com"
    if key.state != "Enabled":
        text = f"detcloud:kmsKey is {key.state}"
        yield Finding(Level.ERROR, "key", text, "enable it, or name another")
    elif service not in key.services:
        text = (
            f"the policy of detcloud:kmsKey does not let {service} use it, so log groups cannot "
            "use it"
        )
        remedy = "`detcloud deploy policy aws --key` prints the statement to add to it"
        yield Finding(Level.ERROR, "key", text, remedy)
    else:
        yield fine_finding("key", "enabled, and the logs may use it")


def _spot_role(is_there: bool) -> Iterator[Finding]:
    if is_there:
        yield fine_finding("spot role", "AWSServiceRoleForEC2Spot is there for the key's grant")
    else:
        remedy = "aws iam create-service-linked-role --aws-service-name spot.amazonaws.com"
        text = "AWSServiceRoleForEC2Spot is missing, but the key's grant needs it"
        yield Finding(Level.ERROR, "spot role", text, remedy)


def reserved_concurrency(settings: Settings) -> int:
    """Return the total of concurrent runs that the stack reserves for the API, tick and helpers.

    A setting of -1 reserves nothing; without reserved ticks, the helpers reserve nothing either.
    """
    ticks = settings.tick_concurrency
    of_tick = ticks + RESERVED_BESIDE_TICKS if ticks != -1 else 0
    return of_tick + max(0, settings.api_concurrency)


def default_api_concurrency(settings: Settings, found: Concurrency) -> int:
    """Return API_CONCURRENCY, or -1 if that reservation would leave less than UNRESERVED_MIN.

    -1 means that the API reserves nothing, as in a new account with a low limit.
    """
    left = found.unreserved + found.reserved_here - reserved_concurrency(settings)
    return API_CONCURRENCY if left - API_CONCURRENCY >= UNRESERVED_MIN else -1


def _concurrency(settings: Settings, found: Concurrency) -> Iterator[Finding]:
    wanted = reserved_concurrency(settings)
    if wanted == 0:
        yield fine_finding("concurrency", f"no concurrency is reserved out of {found.limit}")
        return
    left = found.unreserved + found.reserved_here - wanted
    if left < UNRESERVED_MIN:
        text = (
            f"functions may run {found.limit} times at once; reserving {wanted} would leave "
            f"{left} for others, but Lambda requires {UNRESERVED_MIN}"
        )
        names = {"tickConcurrency": settings.tick_concurrency}
        names["apiConcurrency"] = settings.api_concurrency
        said = " and ".join(
            f"detcloud:{name}: -1" for name, number in names.items() if number != -1
        )
        remedy = f"set {said}, or request an increase of quota L-B99A9384"
        yield Finding(Level.ERROR, "concurrency", text, remedy)
    else:
        yield fine_finding("concurrency", f"{wanted} are reserved, and {left} remain for others")


def _networks(settings: Settings, found: NetworkCount) -> Iterator[Finding]:
    known = f"{found.count} of {found.limit:g} networks are there"
    if found.has_own:
        yield fine_finding("network", f"{known}, including the stack's")
    elif found.count >= found.limit:
        remedy = (
            f"request an increase of quota {VPC_QUOTA} at "
            f"{quotas_url('vpc', settings.region)}, or name a "
            "network in detcloud:network"
        )
        yield Finding(Level.ERROR, "network", f"{known}, and the stack creates one", remedy)
    else:
        yield fine_finding("network", f"{known}, and there is room for the stack's")


def _launch(answer: DryRun) -> Iterator[Finding]:
    """Yield the finding about EC2's answer to the deployer's dry-run launch.

    A denial by an organization's policy is an error, because the tick's launches would fail too. A
    denial to the deployer alone is a warning: only the tick launches. A missing launch template is
    fine. Any other code is a warning.
    """
    if _BY_ORGANIZATION.search(answer.message):
        text = "a policy of the organization denies launches in this account and region"
        yield Finding(
            Level.ERROR, "launch", text, "ask the administrator of the organization's policies"
        )
    elif answer.code == WOULD_WORK:
        yield fine_finding("launch", "EC2 would launch: CreateFleet with DryRun succeeded")
    elif answer.code in ("UnauthorizedOperation", "AccessDenied"):
        text = (
            "could not be checked: these credentials may not launch instances, which is not "
            "required"
        )
        remedy = "the check needs ec2:CreateFleet; the tick has it by its own role"
        yield Finding(Level.WARNING, "launch", text, remedy)
    elif answer.code.startswith("InvalidLaunchTemplate"):
        # EC2 checks permissions before the template, and only a real launch creates the template.
        yield fine_finding("launch", "allowed, as far as EC2 tells without a launch template")
    else:
        text = f"EC2 answered {answer.code} to CreateFleet with DryRun"
        yield Finding(Level.WARNING, "launch", text, "look up the code in EC2's API reference")
