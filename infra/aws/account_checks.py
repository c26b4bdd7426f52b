"""Checks whether a stack can run in an AWS account. Pure.

Each check turns a fact about the account into findings with a text and a remedy.
"""

from collections.abc import Iterator

from control_plane.aws.vcpu_quotas import VPC_QUOTA, quotas_url
from control_plane.config.pools import ClusterConfig
from infra.aws.account_facts import (
    AccountFacts,
    Caller,
    Concurrency,
    DiskKey,
    KeyFacts,
    NetworkCount,
    OwnBucket,
    PoolFacts,
)
from infra.aws.deployer import check_actions
from infra.aws.launch_checks import check_launches
from infra.aws.purchase_checks import check_pools
from infra.aws.settings import Settings
from infra.findings import Finding, Level, Unknown, fine_finding, read_fact

# Lambda refuses a reservation that leaves fewer unreserved concurrent runs.
UNRESERVED_MIN = 100
# A thousand agents' syncs occupy about four runs; the rest is for reconnects after an outage.
API_CONCURRENCY = 50
# One run each for checkpoint_gc and suggest.
RESERVED_BESIDE_TICKS = 2
OWN_KEY_REMEDY = (
    "name the key in detcloud:kmsKey, which gives the tick and the spot market their grants"
)


def check_facts(settings: Settings, cluster: ClusterConfig, facts: AccountFacts) -> list[Finding]:
    """Return findings about credentials, permissions, pools, disks, keys, network and quotas.

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
    if settings.kms_key and facts.key is not None:
        found += read_fact(facts.key, "key", lambda key: _own_key(settings, key))
    found += read_fact(
        facts.has_spot_role, "spot role", lambda is_there: _spot_role(settings, is_there)
    )
    if facts.networks is not None:
        found += read_fact(
            facts.networks, "network", lambda networks: _networks(settings, networks)
        )
    found += read_fact(
        facts.concurrency, "concurrency", lambda concurrency: _concurrency(settings, concurrency)
    )
    if facts.own_bucket is not None:
        found += read_fact(facts.own_bucket, "bucket of checkpoints", _own_bucket)
    return [*found, *check_launches(settings, cluster, facts)]


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


def reserved_concurrency(settings: Settings) -> int:
    """Return the total of concurrent runs that the stack reserves for the API, ticks and helpers.

    The tick and `wake` reserve the setting's number each. A setting of -1 reserves nothing; without
    reserved ticks, the helpers reserve nothing either.
    """
    ticks = settings.tick_concurrency
    of_tick = 2 * ticks + RESERVED_BESIDE_TICKS if ticks != -1 else 0
    return of_tick + max(0, settings.api_concurrency)


def default_api_concurrency(settings: Settings, found: Concurrency) -> int:
    """Return API_CONCURRENCY, or -1 if that reservation would leave less than UNRESERVED_MIN.

    -1 means that the API reserves nothing, as in a new account that allows few concurrent runs.
    """
    left = found.unreserved + found.reserved_here - reserved_concurrency(settings)
    return API_CONCURRENCY if left - API_CONCURRENCY >= UNRESERVED_MIN else -1


def _caller(settings: Settings, caller: Caller) -> Iterator[Finding]:
    """Yield an error if the credentials belong to another account than the settings name.

    Otherwise yield a fine finding with the ARN of the caller.
    """
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
    """Yield an error about denied actions, or a warning if only the check calls the actions.

    Yield a fine finding without denied actions. The text lists at most 8 actions.
    """
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


def _disk_key(disk_key: DiskKey, own_key_remedy: str) -> Iterator[Finding]:
    """Yield an error with the remedy if the default key is customer-managed.

    Otherwise yield a fine finding.
    """
    if disk_key.is_own:
        text = (
            f"this account's default key, {disk_key.key}, is its own: spot instances end as they "
            "start unless EC2's spot market may use it"
        )
        yield Finding(Level.ERROR, "disks", text, own_key_remedy)
    else:
        yield fine_finding("disks", "encrypted with AWS's own key")


def _own_key(settings: Settings, key: KeyFacts) -> Iterator[Finding]:
    """Yield an error if `kms_key` is not enabled or CloudWatch's logs may not use the key.

    Otherwise yield a fine finding.
    """
    service = f"logs.{settings.region}.amazonaws.com"
    if key.state != "Enabled":
        text = f"detcloud:kmsKey is {key.state}"
        yield Finding(
            Level.ERROR, "key", text, "enable the key, or name another in detcloud:kmsKey"
        )
    elif service not in key.services:
        text = (
            f"the policy of detcloud:kmsKey does not let {service} use the key, so log groups "
            "cannot use the key"
        )
        remedy = "`detcloud deploy policy aws --key` prints the statement to add to the policy"
        yield Finding(Level.ERROR, "key", text, remedy)
    else:
        yield fine_finding("key", "enabled, and the logs may use it")


def _spot_role(settings: Settings, is_there: bool) -> Iterator[Finding]:
    """Yield the finding about a missing service role of EC2's spot market.

    Yield nothing if the role exists. The role is missing before the account's first spot instance.
    An error with `kms_key`, because
    the key's grant names the role. Otherwise the tick creates the role, which a permissions
    boundary may forbid: a warning.
    """
    if is_there:
        return
    remedy = "aws iam create-service-linked-role --aws-service-name spot.amazonaws.com"
    missing = "AWSServiceRoleForEC2Spot is missing"
    if settings.kms_key:
        text = f"{missing}, but the key's grant needs it"
        yield Finding(Level.ERROR, "spot role", text, remedy)
    elif settings.permissions_boundary:
        text = f"{missing}, and the boundary may keep the tick from creating it"
        yield Finding(Level.WARNING, "spot role", text, remedy)
    else:
        text = f"{missing}; the tick creates it for the first spot instance"
        yield fine_finding("spot role", text)


def _own_bucket(bucket: OwnBucket) -> Iterator[Finding]:
    """Yield a warning if a team's own bucket keeps no versions, or keeps versions for ever.

    The cluster's collector deletes only current versions in a bucket that the stack did not create.
    Otherwise yield a fine finding.
    """
    subject = f"bucket {bucket.name}"
    rule = "a lifecycle rule with NoncurrentVersionExpiration"
    if not bucket.keeps_versions:
        text = "it keeps no versions, so a checkpoint of a model that somebody deletes is lost"
        yield Finding(Level.WARNING, subject, text, f"enable versions, and add {rule}")
    elif not bucket.deletes_versions:
        text = "it keeps each deleted checkpoint for ever, because no rule deletes old versions"
        yield Finding(Level.WARNING, subject, text, f"add {rule} to the bucket")
    else:
        yield fine_finding(subject, "it keeps deleted checkpoints as versions for some days")


def _networks(settings: Settings, found: NetworkCount) -> Iterator[Finding]:
    """Yield an error if the stack needs a new VPC and the quota is used up.

    Otherwise, and if the stack's own VPC exists, yield a fine finding.
    """
    known = f"{found.count} of {found.limit:g} networks exist"
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
        yield fine_finding("network", f"{known}, and one more fits for the stack")


def _concurrency(settings: Settings, found: Concurrency) -> Iterator[Finding]:
    """Yield an error if the reservations would leave fewer than UNRESERVED_MIN concurrent runs.

    Otherwise, and if the stack reserves nothing, yield a fine finding.
    """
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
