"""Explains EC2's answers to launches with DryRun, and rules of the account about launches. Pure.

Sources: EC2 API reference, "RunInstances" and "VpcBlockPublicAccessOptions"; EC2 user guide,
"Control the discovery and use of AMIs in Amazon EC2 with Allowed AMIs"; VPC user guide, "Block
public access to VPCs and subnets".
"""

from collections.abc import Iterator
from functools import partial

from control_plane.config.pools import ClusterConfig
from infra.aws.account_facts import DryLaunch, DryRun, ImageRules, PoolFacts, PublicAccess
from infra.aws.dry_launches import LAUNCH_NEEDS, NOT_SENT, WOULD_WORK
from infra.aws.pool_checks import aws_pools
from infra.aws.settings import Settings
from infra.findings import Finding, Level, Unknown, fine_finding, read_fact
from provisioner.clouds.aws.errors import cloud_error, error_text
from provisioner.clouds.aws.refusals import Denier, explain_refusal
from provisioner.clouds.provider import (
    ConfigurationError,
    NoCapacity,
    NotAllowed,
    QuotaExceeded,
    ThrottlingError,
)

# EC2 checks the permissions before the launch template, which only a real launch creates. An
# existing template has the right content, because its name is a digest of the content.
_TEMPLATE_CODES = (
    "InvalidLaunchTemplateName.NotFoundException",
    "InvalidLaunchTemplateName.AlreadyExistsException",
)
# What EC2 answers if the account has no default network for a launch without a subnet.
_NO_NETWORK = ("VPCIdNotSpecified", "MissingInput", "VPCResourceNotSpecified")
_DECODE = (
    "; sts:DecodeAuthorizationMessage would show the statement that denies, but these credentials "
    "may not decode the message"
)


def check_launches(
    settings: Settings, cluster: ClusterConfig, facts: PoolFacts
) -> Iterator[Finding]:
    """Yield findings about the launches of the pools and about rules of the account.

    The rules are Allowed AMIs and VPC Block Public Access. An Unknown fact is a warning. Yield
    nothing without pools on AWS.
    """
    if not any(aws_pools(cluster)):
        return
    yield from read_fact(facts.image_rules, "allowed images", _image_rules)
    yield from read_fact(
        facts.public_access, "public access", partial(_public_access, settings, cluster)
    )
    yield from read_fact(facts.launches, "launch", _launches)


def _launches(launches: tuple[DryLaunch, ...]) -> Iterator[Finding]:
    """Yield a finding for each launch: each problem, or a fine finding without problems."""
    for launch in launches:
        subject = f"launch in pool {launch.pool}, {launch.offering}"
        found = [
            finding
            for operation, answer in launch.answers.items()
            for finding in _answer(launch, subject, operation, answer)
        ]
        # All requests of a launch have equal tags and permissions, and so equal problems.
        yield from list(dict.fromkeys(found)) or [_fine_launch(launch, subject)]


def _fine_launch(launch: DryLaunch, subject: str) -> Finding:
    """Return the finding about a launch without problems: fine, or a warning about missing parts.

    The check is a warning before the first deployment, because a rule about the missing parts could
    refuse the launch.
    """
    text = "EC2 would launch it for these credentials: RunInstances with DryRun succeeded"
    if not launch.left_out:
        return fine_finding(subject, text)
    parts = " and ".join(launch.left_out)
    remedy = "repeat `detcloud deploy check` after the first deployment"
    return Finding(Level.WARNING, subject, f"{text}, but without {parts}: not created yet", remedy)


def _answer(
    launch: DryLaunch, subject: str, operation: str, answer: DryRun | Unknown
) -> Iterator[Finding]:
    """Yield the finding about a problem in EC2's answer to `operation`; nothing without a problem.

    A refusal that applies to every role of the account is an error. A refusal of the deployer alone
    is a warning, because only the tick launches. An answer that decides nothing is a warning.
    """
    if isinstance(answer, Unknown):
        yield from read_fact(answer, subject, lambda item: iter(()))
        return
    if answer.code in (WOULD_WORK, *_TEMPLATE_CODES):
        return
    if answer.code in _NO_NETWORK and launch.left_out:
        text = "could not be checked: the account has no default network for a trial of the launch"
        remedy = "repeat `detcloud deploy check` after the first deployment"
        yield Finding(Level.WARNING, subject, text, remedy)
        return
    if answer.code == NOT_SENT:
        yield Finding(Level.ERROR, subject, answer.message, "correct the settings of the pool")
        return
    yield _refusal(subject, operation, answer)


def _refusal(subject: str, operation: str, answer: DryRun) -> Finding:
    """Return the finding about a refused request, with cause and remedy."""
    error = cloud_error(answer.code, answer.message)
    explained = explain_refusal(answer.code, answer.message)
    said = f"EC2 answered {error_text(answer.code, answer.message)} to {operation}"
    reason = f" ({answer.statement})" if answer.statement else ""
    if explained is not None and explained.denier is Denier.CALLER:
        text = f"could not be checked: {explained.cause}{reason}; this is not required"
        hint = _DECODE if answer.decoding_refused else ""
        remedy = f"the check needs {LAUNCH_NEEDS}; the tick has them by its own role{hint}"
        return Finding(Level.WARNING, subject, text, remedy)
    if explained is not None:
        hint = _DECODE if answer.decoding_refused else ""
        return Finding(
            Level.ERROR, subject, f"{explained.cause}{reason}: {said}", explained.remedy + hint
        )
    if isinstance(error, NoCapacity):
        return Finding(Level.WARNING, subject, said, "add types, zones or markets to the pool")
    if isinstance(error, QuotaExceeded):
        return Finding(Level.ERROR, subject, said, "request an increase of the quota")
    if isinstance(error, ConfigurationError):
        return Finding(Level.ERROR, subject, said, "correct the field of the pool that EC2 names")
    if isinstance(error, NotAllowed | ThrottlingError):
        return Finding(Level.WARNING, subject, f"could not be checked: {said}", "try again later")
    text = f"could not be checked: {said}"
    return Finding(Level.WARNING, subject, text, "look up the code in EC2's API reference")


def _image_rules(rules: ImageRules) -> Iterator[Finding]:
    """Yield the finding about the account's Allowed AMIs.

    Images that an enabled setting hides are an error. Images that audit mode marks are a warning,
    because somebody is about to enable the setting.
    """
    images = ", ".join(sorted(rules.refused))
    remedy = (
        "add the images' owner to the criteria of the account or of the organization's declarative "
        "policy, or name other images in provider.image_id"
    )
    if rules.state == "enabled" and rules.refused:
        text = f"the account's Allowed AMIs hide {images}, so EC2 launches nothing from them"
        yield Finding(Level.ERROR, "allowed images", text, remedy)
    elif rules.state == "audit-mode" and rules.refused:
        text = f"the account's Allowed AMIs are in audit mode and would hide {images}"
        yield Finding(Level.WARNING, "allowed images", text, remedy)
    else:
        yield fine_finding("allowed images", f"Allowed AMIs are {rules.state}")


def _public_access(
    settings: Settings, cluster: ClusterConfig, access: PublicAccess
) -> Iterator[Finding]:
    """Yield the finding about VPC Block Public Access.

    `block-ingress` blocks instances with public addresses, and allows NAT gateways.
    `block-bidirectional` blocks both. An excluded VPC, or the exclusion of all subnets, is fine. In
    an existing network, instances without public addresses may have another way out: a warning.
    """
    subject, mode = "public access", access.mode
    if mode == "off":
        yield fine_finding(subject, "VPC Block Public Access is off")
        return
    if _is_excluded(settings, access):
        yield fine_finding(subject, f"VPC Block Public Access is {mode}, except for this network")
        return
    public = [] if settings.private_subnets else _public_pools(cluster)
    if mode == "block-ingress" and not public:
        text = f"VPC Block Public Access is {mode}, which allows NAT gateways"
        yield fine_finding(subject, text)
        return
    exclusion = (
        "exclude the network of the instances, `aws ec2 create-vpc-block-public-access-exclusion`"
        if access.exclusions_allowed
        else "the organization allows no exclusions: use an existing network in detcloud:network"
    )
    if public:
        text = (
            f"VPC Block Public Access is {mode}: instances of the pools {', '.join(public)} have "
            "public addresses and would not reach the cluster's API"
        )
        private = "set provider.network_interface.public_ip: false and detcloud:privateSubnets, or "
        way = private if mode == "block-ingress" else ""
        yield Finding(Level.ERROR, subject, text, way + exclusion)
        return
    text = f"VPC Block Public Access is {mode}, which also blocks NAT gateways"
    level = Level.ERROR if settings.network is None else Level.WARNING
    other = "" if settings.network is None else ", unless another network is their way out"
    text += f": instances would not reach the cluster's API{other}"
    yield Finding(level, subject, text, exclusion)


def _is_excluded(settings: Settings, access: PublicAccess) -> bool:
    """Return whether exclusions cover the instances' VPC or all subnets of the settings."""
    named = set(settings.network.subnets.values()) if settings.network else set()
    in_vpc = bool(access.vpc) and access.vpc in access.exclusions
    return in_vpc or (bool(named) and named <= access.exclusions)


def _public_pools(cluster: ClusterConfig) -> list[str]:
    """Return the names of the pools with public addresses."""
    return [name for name, provider in aws_pools(cluster) if provider.network_interface.public_ip]
