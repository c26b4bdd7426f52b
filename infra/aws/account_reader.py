"""Reads the facts about an account from AWS, with the deployer's credentials.

The calls cost nothing and change nothing.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any, TypeVar

import botocore.exceptions as sdk
from botocore.config import Config

from control_plane.aws.vcpu_quotas import VPC_QUOTA, vcpu_quota
from control_plane.config.pools import ClusterConfig
from control_plane.fleet.records import Market
from detcloud.shared.aws import new_session
from infra.aws.account_facts import (
    AccountFacts,
    Caller,
    Clients,
    Concurrency,
    DiskKey,
    KeyFacts,
    NetworkCount,
    PoolFacts,
    TypeFacts,
)
from infra.aws.company_reader import (
    ACCESS_NEEDS,
    BUCKET_NEEDS,
    IMAGE_NEEDS,
    find_own_bucket,
    read_image_rules,
    read_own_bucket,
    read_public_access,
)
from infra.aws.deployer import deployer_policy
from infra.aws.dry_launches import PLACE_NEEDS, read_launches
from infra.aws.file_system_reader import read_file_system, read_network
from infra.aws.names import INVOKED_BY_TICK
from infra.aws.pool_checks import aws_pools, offerings_of
from infra.aws.sdk_reads import ask_aws, error_code
from infra.aws.settings import Settings
from infra.findings import Unknown
from provisioner.clouds.aws.launch_request import IMAGE_DEFAULT
from provisioner.clouds.provider import CLUSTER_TAG

F = TypeVar("F", bound=PoolFacts)
# The permission to read a file system of each type.
READERS = {"efs": "elasticfilesystem:DescribeMountTargets", "fsx_lustre": "fsx:DescribeFileSystems"}
CONCURRENCY_NEEDS = "lambda:GetAccountSettings and lambda:GetFunctionConcurrency"
NETWORK_NEEDS = "ec2:DescribeVpcs and servicequotas:GetServiceQuota"
# EC2 filters for at most 200 values, and IAM simulates at most 100 actions in a call.
FILTER_VALUES_MAX = 200
SIMULATED_MAX = 100
# Services with an endpoint in one region only.
_REGIONS = {"freetier": "us-east-1"}
# A person waits for the check; with the default timeouts, each call without network takes minutes.
_PATIENCE = Config(connect_timeout=5, read_timeout=20, retries={"total_max_attempts": 2})
_MISSING = frozenset(
    {"NoSuchEntity", "ResourceNotFoundException", "InvalidAMIID.NotFound", "NotFoundException"}
)


def aws_clients(region: str) -> Clients:
    """Return a function that creates and caches a region's SDK clients by service name.

    The clients use the environment's credentials and short timeouts. The client of `freetier`
    always calls us-east-1.
    """
    session, made = new_session(), dict[str, Any]()

    def client(service: str) -> Any:
        if service not in made:
            place = _REGIONS.get(service, region)
            made[service] = session.create_client(service, place, config=_PATIENCE)
        return made[service]

    return client


def read_account(settings: Settings, cluster: ClusterConfig, clients: Clients) -> AccountFacts:
    """Read all facts that the settings and the pools depend on from AWS.

    A read that AWS refuses or does not answer becomes Unknown, also without credentials.
    """
    caller = ask_aws("sts:GetCallerIdentity", lambda: _caller(clients))
    pools = _read_pool_facts(settings, cluster, clients)
    facts = AccountFacts(
        **{field.name: getattr(pools, field.name) for field in fields(pools)},
        caller=caller,
        denied=_ask_permissions(settings, caller, clients),
        concurrency=read_concurrency(settings, clients),
        key=ask_aws("kms:GetKeyPolicy", lambda: _key(settings, clients))
        if settings.kms_key
        else None,
        has_spot_role=(
            ask_aws("iam:GetRole", lambda: _has_spot_role(clients))
            if settings.kms_key or _buys_spot(cluster)
            else True
        ),
        own_bucket=(
            ask_aws(BUCKET_NEEDS, lambda: read_own_bucket(clients, bucket))
            if (bucket := find_own_bucket(cluster))
            else None
        ),
        networks=(
            ask_aws(NETWORK_NEEDS, lambda: _networks(settings, clients))
            if settings.network is None
            else None
        ),
    )
    return _with_file_systems(facts, settings, cluster, clients)


def read_pools(settings: Settings, cluster: ClusterConfig, clients: Clients) -> PoolFacts:
    """Read the facts that the pools depend on from AWS; Unknown for a failed read."""
    facts = _read_pool_facts(settings, cluster, clients)
    return _with_file_systems(facts, settings, cluster, clients)


def _read_pool_facts(settings: Settings, cluster: ClusterConfig, clients: Clients) -> PoolFacts:
    """Return the facts that the pools depend on, except file systems and network, from AWS.

    A failed read raises nothing, and becomes Unknown.
    """
    bought = [
        (offering.instance_type, offering.market)
        for _, provider in aws_pools(cluster)
        for offering in offerings_of(provider)
    ]
    types = sorted({name for name, _ in bought})
    default_image = ask_aws("ssm:GetParameters", lambda: _default_image(clients))
    images = {aws_provider.image_id for _, aws_provider in aws_pools(cluster)} - {""}
    codes = {quota.code for name, market in bought if (quota := vcpu_quota(name, Market(market)))}
    return PoolFacts(
        quotas={code: _quota(clients, code) for code in sorted(codes)},
        types=ask_aws("ec2:DescribeInstanceTypes", lambda: _types(clients, types)),
        zones=ask_aws("ec2:DescribeInstanceTypeOfferings", lambda: _zones(clients, types)),
        disk_key=ask_aws("ec2:GetEbsDefaultKmsKeyId", lambda: _disk_key(clients)),
        image=default_image,
        image_architectures=ask_aws("ec2:DescribeImages", lambda: _architectures(clients, images)),
        launches=ask_aws(PLACE_NEEDS, lambda: read_launches(settings, cluster, clients)),
        image_rules=ask_aws(
            IMAGE_NEEDS, lambda: read_image_rules(clients, _launched_images(images, default_image))
        ),
        public_access=ask_aws(ACCESS_NEEDS, lambda: read_public_access(settings, clients)),
        plan=ask_aws("freetier:GetAccountPlanState", lambda: _plan(clients)),
    )


def _with_file_systems(facts: F, settings: Settings, cluster: ClusterConfig, clients: Clients) -> F:
    """Return a copy of `facts` with the pools' file systems and the instances' network from AWS.

    A failed read raises nothing, and becomes Unknown in the copy. Return `facts` itself, without a
    call, if no pool mounts a file system.
    """
    mounted = {
        file_system.id: file_system
        for _, pool in aws_pools(cluster)
        for file_system in pool.file_systems
    }
    if not mounted:
        return facts
    systems = {
        name: ask_aws(READERS[system.type], partial(read_file_system, clients, system))
        for name, system in sorted(mounted.items())
    }
    needs = "ec2:DescribeSecurityGroups"
    network = ask_aws(needs, lambda: read_network(settings, clients, systems.values()))
    return replace(facts, file_systems=systems, network=network)


def _caller(clients: Clients) -> Caller:
    """Return the identity of the credentials. Raise the SDK's errors."""
    answer = clients("sts").get_caller_identity()
    return Caller(answer["Account"], answer["Arn"])


def _ask_permissions(
    settings: Settings, caller: Caller | Unknown, clients: Clients
) -> tuple[str, ...] | Unknown:
    """Return the actions that IAM denies to the caller; Unknown if IAM cannot simulate the caller.

    Policies of an organization limit the root user of a member account, but IAM simulates only
    users and roles.
    """
    if isinstance(caller, Caller) and caller.arn.endswith(":root"):
        why = "IAM does not simulate the root user, whom policies of an organization limit"
        return Unknown("credentials of a user or a role", why)
    needs = "iam:GetRole and iam:SimulatePrincipalPolicy"
    return ask_aws(needs, lambda: _denied_actions(settings, caller, clients))


def _denied_actions(
    settings: Settings, caller: Caller | Unknown, clients: Clients
) -> tuple[str, ...]:
    """Return the sorted actions of the deployer's policy that IAM denies to the caller.

    IAM simulates the actions; no action is carried out. The actions of a service in a statement are
    simulated with a single resource, an example for the service's first pattern. An action that is
    denied only on other resources is therefore missing in the result. Denials in the policy are not
    simulated. Raise NoCredentialsError if the caller is Unknown, and the SDK's errors.
    """
    if isinstance(caller, Unknown):
        raise sdk.NoCredentialsError
    source, iam = _principal(caller, clients), clients("iam")
    denied = set()
    for statement in deployer_policy(settings)["Statement"]:
        if statement["Effect"] != "Allow":
            continue
        for actions, resource in _simulated_parts(statement):
            request = {
                "PolicySourceArn": source,
                "ActionNames": actions,
                # Simulate an example resource; the wildcard is replaced by a concrete name.
                "ResourceArns": [resource.replace("*", "x")],
                "ContextEntries": _context(statement.get("Condition", {})),
            }
            if resource == "*":
                del request["ResourceArns"]
            for page in iam.get_paginator("simulate_principal_policy").paginate(**request):
                denied |= {
                    evaluation_result["EvalActionName"]
                    for evaluation_result in page["EvaluationResults"]
                    if evaluation_result["EvalDecision"] != "allowed"
                }
    return tuple(sorted(denied))


def _simulated_parts(statement: Mapping[str, Any]) -> Iterator[tuple[list[str], str]]:
    """Yield the actions of a statement for each simulation, with the pattern of a resource.

    Actions of different services are separate, because IAM denies an action on a resource of
    another service.
    """
    resources = statement["Resource"]
    if resources == ["*"]:
        yield from ((actions, "*") for actions in _chunks(statement["Action"], SIMULATED_MAX))
        return
    services = dict.fromkeys(action.partition(":")[0] for action in statement["Action"])
    for service in services:
        own = [arn for arn in resources if arn.startswith(f"arn:aws:{service}:")]
        actions = [action for action in statement["Action"] if action.startswith(f"{service}:")]
        for some in _chunks(actions, SIMULATED_MAX):
            yield some, (own or resources)[0]


def _context(condition: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return IAM context entries that fulfil the condition of a policy statement.

    A key with several values gets the first value.
    """
    return [
        {
            "ContextKeyName": key,
            "ContextKeyType": "string",
            "ContextKeyValues": [values] if isinstance(values, str) else values[:1],
        }
        for keys in condition.values()
        for key, values in keys.items()
    ]


def _principal(caller: Caller, clients: Clients) -> str:
    """Return the ARN of the caller's user, or of the role that the caller's session assumed.

    If IAM refuses to read the role, return an ARN without the role's path.
    """
    if ":assumed-role/" not in caller.arn:
        return caller.arn
    role = caller.arn.split("/")[1]
    try:
        # A session's ARN lacks the role's path.
        arn: str = clients("iam").get_role(RoleName=role)["Role"]["Arn"]
    except sdk.ClientError:
        return f"arn:aws:iam::{caller.account}:role/{role}"
    return arn


def _quota(clients: Clients, code: str) -> float | Unknown:
    """Read the value of a quota of EC2 by the code; Unknown if the read failed."""

    def read() -> float:
        asked = {"ServiceCode": "ec2", "QuotaCode": code}
        value: float = clients("service-quotas").get_service_quota(**asked)["Quota"]["Value"]
        return value

    return ask_aws("servicequotas:GetServiceQuota", read)


def _types(clients: Clients, names: list[str]) -> dict[str, TypeFacts]:
    """Return the facts of the instance types `names`; types unknown in the region are left out."""
    described = _describe(clients, "describe_instance_types", "InstanceTypes", names)
    return {item["InstanceType"]: _type_facts(item) for item in described}


def _type_facts(described: Mapping[str, Any]) -> TypeFacts:
    """Convert EC2's description of an instance type."""
    gpus = described.get("GpuInfo", {}).get("Gpus", ())
    return TypeFacts(
        vcpus=described["VCpuInfo"]["DefaultVCpus"],
        architectures=frozenset(described["ProcessorInfo"]["SupportedArchitectures"]),
        gpus=tuple((item.get("Manufacturer", ""), item.get("Name", "")) for item in gpus),
        markets=frozenset(described.get("SupportedUsageClasses", ("on-demand",))),
        gpu_count=sum(int(item.get("Count", 0)) for item in gpus),
        memory_mib=described.get("MemoryInfo", {}).get("SizeInMiB", 0),
        store_gb=described.get("InstanceStorageInfo", {}).get("TotalSizeInGB", 0),
        network=described.get("NetworkInfo", {}).get("NetworkPerformance", ""),
    )


def _zones(clients: Clients, names: list[str]) -> dict[str, frozenset[str]]:
    """Return the zones that offer each of the types, without types that no zone offers."""
    where = {"LocationType": "availability-zone"}
    operation = "describe_instance_type_offerings"
    found: dict[str, set[str]] = {}
    for item in _describe(clients, operation, "InstanceTypeOfferings", names, **where):
        found.setdefault(item["InstanceType"], set()).add(item["Location"])
    return {name: frozenset(zones) for name, zones in found.items()}


def _describe(
    clients: Clients, operation: str, result: str, types: list[str], **more: Any
) -> list[dict[str, Any]]:
    """Return the entries under `result` of all pages of an EC2 operation for instance types.

    Return [] without calling EC2 if `types` is empty. `more` has further arguments of the
    operation. Raise the SDK's errors.
    """
    pages = clients("ec2").get_paginator(operation)
    return [
        item
        for values in _chunks(types, FILTER_VALUES_MAX)
        for page in pages.paginate(Filters=[{"Name": "instance-type", "Values": values}], **more)
        for item in page[result]
    ]


def _disk_key(clients: Clients) -> DiskKey:
    """Return the account's default key for disks. Raise the SDK's errors."""
    key = clients("ec2").get_ebs_default_kms_key_id()["KmsKeyId"]
    return DiskKey(key, is_own=not key.endswith("alias/aws/ebs"))


def read_concurrency(settings: Settings, clients: Clients) -> Concurrency | Unknown:
    """Read from AWS how many function runs are allowed at a time; Unknown if the read failed."""
    return ask_aws(CONCURRENCY_NEEDS, lambda: _concurrency(settings, clients))


def _concurrency(settings: Settings, clients: Clients) -> Concurrency:
    """Return how many function runs Lambda allows at a time in the settings' region.

    The result contains the runs that this stack's functions have reserved. Raise the SDK's errors.
    """
    limits = clients("lambda").get_account_settings()["AccountLimit"]
    here = sum(
        _reserved_concurrency(clients, settings.names.part(name))
        for name in ("api", "tick", "wake", *INVOKED_BY_TICK)
    )
    return Concurrency(
        limits["ConcurrentExecutions"], limits["UnreservedConcurrentExecutions"], here
    )


def _reserved_concurrency(clients: Clients, function: str) -> int:
    """Return a function's reserved concurrent runs.

    Return 0 without a reservation and for a missing function. Raise the SDK's other errors.
    """
    try:
        answer = clients("lambda").get_function_concurrency(FunctionName=function)
    except sdk.ClientError as error:
        if error_code(error) not in _MISSING:
            raise
        return 0
    return int(answer.get("ReservedConcurrentExecutions", 0))


def _networks(settings: Settings, clients: Clients) -> NetworkCount:
    """Count the VPCs in the region, and return the count with the account's quota of VPCs.

    The result also says whether a VPC with the cluster's tag exists, the stack's own network. Raise
    the SDK's errors.
    """
    pages = clients("ec2").get_paginator("describe_vpcs").paginate()
    found = [vpc for page in pages for vpc in page["Vpcs"]]
    own = {"Key": CLUSTER_TAG, "Value": settings.names.cluster}
    asked = {"ServiceCode": "vpc", "QuotaCode": VPC_QUOTA}
    limit: float = clients("service-quotas").get_service_quota(**asked)["Quota"]["Value"]
    return NetworkCount(len(found), limit, any(own in item.get("Tags", ()) for item in found))


def _plan(clients: Clients) -> str:
    """Return the account's plan, `FREE` or `PAID`, or "" for accounts from before July 2025.

    AWS knows no plan of these accounts. Raise the SDK's errors, except that of a missing plan.
    """
    try:
        return str(clients("freetier").get_account_plan_state()["accountPlanType"])
    except sdk.ClientError as error:
        if error_code(error) in _MISSING:
            return ""
        raise


def _default_image(clients: Clients) -> str:
    """Return the id of the default image, or "" if the region has no parameter with the id.

    Raise the SDK's errors.
    """
    name = IMAGE_DEFAULT.removeprefix("resolve:ssm:")
    found = clients("ssm").get_parameters(Names=[name])["Parameters"]
    return str(found[0]["Value"]) if found else ""


def _launched_images(images: Iterable[str], default: str | Unknown) -> set[str]:
    """Return the images of the pools by id, with the default image if known."""
    return {*images, *([] if isinstance(default, Unknown) else [default])}


def _architectures(clients: Clients, images: Iterable[str]) -> dict[str, str]:
    """Return the architecture of each existing image by id.

    Skip missing images, and names that do not begin with `ami-`. Call EC2 once for each image,
    because one missing image fails a whole call. Raise the SDK's other errors.
    """
    found: dict[str, str] = {}
    for image in sorted(name for name in images if name.startswith("ami-")):
        try:
            described = clients("ec2").describe_images(ImageIds=[image])["Images"]
        except sdk.ClientError as error:
            if error_code(error) not in _MISSING and not error_code(error).startswith(
                "InvalidAMIID"
            ):
                raise
            continue
        found |= {item["ImageId"]: item["Architecture"] for item in described}
    return found


def _key(settings: Settings, clients: Clients) -> KeyFacts:
    """Return the state of `kms_key`, and the services that the key's policy allows.

    Conditions in the policy are ignored. Raise the SDK's errors, also for a missing key.
    """
    kms, key = clients("kms"), settings.kms_key
    state = kms.describe_key(KeyId=key)["KeyMetadata"]["KeyState"]
    text = kms.get_key_policy(KeyId=key, PolicyName="default")["Policy"]
    services: set[str] = set()
    for statement in json.loads(text)["Statement"]:
        principal = statement.get("Principal", {})
        named = principal.get("Service", ()) if isinstance(principal, dict) else ()
        if statement["Effect"] == "Allow":
            services |= {named} if isinstance(named, str) else set(named)
    return KeyFacts(state, frozenset(services))


def _buys_spot(cluster: ClusterConfig) -> bool:
    """Return whether a pool on AWS has an offering on the spot market."""
    return any(
        Market(offering.market) is Market.SPOT
        for _, provider in aws_pools(cluster)
        for offering in offerings_of(provider)
    )


def _has_spot_role(clients: Clients) -> bool:
    """Return whether the account has the service role of EC2's spot market.

    Raise the SDK's errors except the one for a missing role.
    """
    try:
        clients("iam").get_role(RoleName="AWSServiceRoleForEC2Spot")
    except sdk.ClientError as error:
        if error_code(error) in _MISSING:
            return False
        raise
    return True


def _chunks(values: list[str], size: int) -> Iterable[list[str]]:
    return (values[at : at + size] for at in range(0, len(values), size))
