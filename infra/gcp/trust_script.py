"""The shell script that creates a cluster's remote account on Google Cloud.

The cluster runs in another cloud or on own machines.

The script creates the trust in the launching function, two service accounts, roles and a network.
An administrator of the project runs the script once, and again for another region or after a
release with new permissions: existing resources stay, and roles get missing permissions. Google
reserves the names of deleted identity pools, providers and roles for some time, so the script
restores them. The script changes nothing if the project's identity pool trusts another cluster,
unless that pool was deleted.
"""

import shlex
from collections.abc import Iterator
from typing import Final

from infra.gcp.names import Names
from infra.gcp.policies import ROLES, Grant
from infra.gcp.ranges import subnetwork_ranges
from infra.gcp.trust_policies import MAPPING, PROVIDER_ID, Trust, list_remote_grants

# The Google APIs that the launcher, the instances and the deployer's check call.
SERVICES: Final = (
    "cloudbilling",
    "cloudresourcemanager",
    "compute",
    "iam",
    "iamcredentials",
    "logging",
    "sts",
)
ACCOUNTS: Final = {
    "launcher": "what launches instances, for a function in another cloud",
    "instance": "instances of the cluster",
}
TRUST_ROLE: Final = "issue_tokens"


def render_script(trust: Trust, regions: tuple[str, ...], *, logs_instances: bool) -> str:
    """Return the bash script that creates or completes the remote account.

    `regions` get a subnetwork each. With `logs_instances`, instances may write to Cloud Logging.
    The script stops with an error if the project contains another cluster of this name.
    """
    grants = list_remote_grants(trust.names, regions, logs_instances=logs_instances)
    grants = [grant for grant in grants if grant.account in trust.accounts]
    roles = [*dict.fromkeys(grant.role for grant in grants)]
    trusting = []
    if trust.has_launcher:
        roles.append(TRUST_ROLE)
        trusting.append(_binding_line(trust.names, "launcher", TRUST_ROLE, trust.member))
    lines = [
        *_head(trust),
        *check_lines(trust),
        gcloud("services", "enable", *(f"{service}.googleapis.com" for service in SERVICES)),
        *([] if trust.launcher.is_server else _trust_lines(trust)),
        *_account_lines(trust),
        *_role_lines(trust.names, roles),
        *_network_lines(trust.names, regions),
        *(_grant_line(trust.names, grant) for grant in grants),
        *trusting,
        f"echo {shlex.quote(f'{trust.names.project} is ready for the pools of its cluster')}",
    ]
    return "\n".join([*lines, ""])


def _head(trust: Trust) -> Iterator[str]:
    """Yield the first lines of the script: interpreter, comments and modes."""
    names, launcher = trust.names, trust.launcher
    yield "#!/bin/bash"
    yield f"# What the cluster {names.cluster}, which runs {launcher.place}, needs for its pools"
    yield f"# in the project {names.project}. To run it again changes what is missing alone."
    yield from begin_lines(names)


def begin_lines(names: Names) -> Iterator[str]:
    """Yield the script lines that set bash's strict mode, and gcloud's project without prompts."""
    yield "set -euo pipefail"
    yield f"export CLOUDSDK_CORE_PROJECT={names.project} CLOUDSDK_CORE_DISABLE_PROMPTS=1"


def check_lines(trust: Trust) -> Iterator[str]:
    """Yield script lines that stop the script if another cluster of this name uses the project.

    The other cluster either runs in the project, or runs elsewhere and has a remote account here. A
    remote account whose identity pool was deleted does not count. `trust` names the project, and
    the account in which the own cluster runs.
    """
    names, account = trust.names, trust.launcher.account
    taken = (
        f"{names.project} has a cluster {names.cluster} of its own, which would end the instances "
        "of this one: use another project"
    )
    described = gcloud("firestore", "databases", "describe", f"--database={names.database}")
    yield f"if {described} > /dev/null 2>&1; then echo {shlex.quote(taken)} >&2; exit 1; fi"
    if trust.launcher.is_server:
        yield _check_server(trust)
        return
    asked = gcloud(*_provider_words(trust, "describe"), "--format=value(aws.accountId)")
    remedy = (
        f"and not {account}: clusters of one name cannot share the project {names.project}. Take "
        "another project, or another name for the team; where that cluster is gone, `detcloud "
        f"deploy trust {trust.launcher.cloud} --team {names.team} --remove` with its settings "
        "removes its remote account"
    )
    yield f"home=$({asked} 2> /dev/null) || home={account}"
    whose = f"the pool of identities {trust.pool} exists, and its cluster runs in account $home,"
    yield f'if [ "$home" != {account} ] && ! {_is_deleted(trust)}; then'
    yield f'  echo "{whose}" {shlex.quote(remedy)} >&2; exit 1'
    yield "fi"


def _check_server(trust: Trust) -> str:
    """Return the script line that stops the script if the account `instance` is another server's.

    The account's description names the cluster. A missing account does not stop the script.
    """
    names, ours = trust.names, _description(trust, "instance")
    email = names.email("instance")
    asked = gcloud("iam", "service-accounts", "describe", email, "--format=value(description)")
    taken = (
        f"the service account {email} belongs to another cluster: use another name for the "
        "cluster, or remove the remote account of the other cluster"
    )
    return (
        f"whose=$({asked} 2> /dev/null) || whose={shlex.quote(ours)}; "
        f'if [ "$whose" != {shlex.quote(ours)} ]; then echo {shlex.quote(taken)} >&2; exit 1; fi'
    )


def _description(trust: Trust, account: str) -> str:
    """Return the description of a service account, which names a cluster on own machines."""
    text = f"{trust.names.cluster}: {ACCOUNTS[account]}"
    return f"{text} ({trust.launcher.account})" if trust.launcher.is_server else text


def _provider_words(trust: Trust, verb: str) -> tuple[str, ...]:
    """Return the arguments of gcloud for `verb` on the identity provider."""
    where = ("--location=global", f"--workload-identity-pool={trust.pool}")
    return ("iam", "workload-identity-pools", "providers", verb, PROVIDER_ID, *where)


def _is_deleted(trust: Trust) -> str:
    """Return the bash test that the identity pool or the provider is deleted but still listed."""
    pool = ("iam", "workload-identity-pools", "describe", trust.pool, "--location=global")
    asked = (
        gcloud(*item, "--format=value(state)")
        for item in (pool, _provider_words(trust, "describe"))
    )
    states = " ".join(f"$({name} 2> /dev/null || true)" for name in asked)
    return f'[[ "{states}" == *DELETED* ]]'


def _trust_lines(trust: Trust) -> Iterator[str]:
    """Yield script lines that create or update the identity pool and the identity provider.

    Deleted ones are restored first, because Google keeps their names for 30 days.
    """
    pools, place = ("iam", "workload-identity-pools"), "--location=global"
    kept = (
        f"Google keeps the pool of identities {trust.pool} for 30 days after its deletion, and "
        "refuses a new pool of that name: the script restores the pool for this cluster alone"
    )
    yield f"if {_is_deleted(trust)}; then echo {shlex.quote(kept)} >&2; fi"
    described = gcloud(*pools, "describe", trust.pool, place, "--format=value(state)")
    yield _take_back(described, "DELETED", gcloud(*pools, "undelete", trust.pool, place))
    about = f"--description=who launches instances of {trust.names.cluster}"
    yield _create_if_missing(
        gcloud(*pools, "describe", trust.pool, place),
        gcloud(*pools, "create", trust.pool, place, about),
    )
    described = gcloud(*_provider_words(trust, "describe"), "--format=value(state)")
    yield _take_back(described, "DELETED", gcloud(*_provider_words(trust, "undelete")))
    said = (
        f"--account-id={trust.launcher.account}",
        f"--attribute-mapping={MAPPING}",
        f"--attribute-condition={trust.condition}",
    )
    yield _update_or_create(
        gcloud(*_provider_words(trust, "describe")),
        gcloud(*_provider_words(trust, f"update-{trust.launcher.cloud}"), *said),
        gcloud(*_provider_words(trust, f"create-{trust.launcher.cloud}"), *said),
    )


def _account_lines(trust: Trust) -> Iterator[str]:
    """Yield script lines that create missing service accounts."""
    names = trust.names
    for account in trust.accounts:
        yield _create_if_missing(
            gcloud("iam", "service-accounts", "describe", names.email(account)),
            gcloud(
                *("iam", "service-accounts", "create", names.account_id(account)),
                f"--display-name={names.cluster}: {account}",
                f"--description={_description(trust, account)}",
            ),
        )


def _role_lines(names: Names, roles: list[str]) -> Iterator[str]:
    """Yield script lines that create the custom roles, or restore and update existing roles."""
    for role in roles:
        where = (names.role_id(role), f"--project={names.project}")
        said = (
            f"--title={names.cluster}: {role.replace('_', ' ')}",
            f"--permissions={','.join(ROLES[role])}",
            "--stage=GA",
        )
        described = gcloud("iam", "roles", "describe", *where, "--format=value(deleted)")
        yield _take_back(described, "True", gcloud("iam", "roles", "undelete", *where))
        hint = (
            f"If a role {names.role_id(role)} was deleted more than 7 days ago, Google refuses "
            "that name until 37 days after the deletion: wait, or use another name for the team"
        )
        create = gcloud("iam", "roles", "create", *where, *said)
        yield _update_or_create(
            gcloud("iam", "roles", "describe", *where),
            gcloud("iam", "roles", "update", *where, *said),
            f"{{ {create} || {{ echo {shlex.quote(hint)} >&2; exit 1; }}; }}",
        )


def _network_lines(names: Names, regions: tuple[str, ...]) -> Iterator[str]:
    """Yield script lines that create the missing network, subnetworks and firewall rule."""
    network, firewall, tag = names.part("network"), names.part("within"), names.cluster
    yield _create_if_missing(
        gcloud("compute", "networks", "describe", network),
        gcloud(
            *("compute", "networks", "create", network, "--subnet-mode=custom"),
            *("--bgp-routing-mode=regional", "--mtu=8896"),
        ),
    )
    for region, block in zip(regions, subnetwork_ranges(), strict=False):
        name, where = names.part(region), f"--region={region}"
        yield _create_if_missing(
            gcloud("compute", "networks", "subnets", "describe", name, where),
            gcloud(
                *("compute", "networks", "subnets", "create", name, where),
                *(f"--network={network}", f"--range={block}"),
                "--enable-private-ip-google-access",
            ),
        )
    yield _create_if_missing(
        gcloud("compute", "firewall-rules", "describe", firewall),
        gcloud(
            *("compute", "firewall-rules", "create", firewall, f"--network={network}"),
            *("--direction=INGRESS", "--allow=all", f"--source-tags={tag}", f"--target-tags={tag}"),
        ),
    )


def grant_condition(grant: Grant) -> str:
    """Return a grant's condition for gcloud's option --condition; `None` without a condition."""
    if not grant.condition:
        return "None"
    return f"title={grant.account} {grant.role},expression={grant.condition}"


def _grant_line(names: Names, grant: Grant) -> str:
    """Return the command that grants a role on the project, a subnetwork or a service account."""
    condition = grant_condition(grant)
    role, member = f"--role={names.role(grant.role)}", f"--member={names.member(grant.account)}"
    said = (member, role, f"--condition={condition}", "--format=none")
    match grant.place.kind:
        case "project":
            return gcloud("projects", "add-iam-policy-binding", names.project, *said)
        case "subnetwork":
            name, region = names.part(grant.place.name), f"--region={grant.place.name}"
            add = ("compute", "networks", "subnets", "add-iam-policy-binding")
            return gcloud(*add, name, region, member, role, "--format=none")
        case _:
            return _binding_line(names, grant.place.name, grant.role, names.member(grant.account))


def _binding_line(names: Names, account: str, role: str, member: str) -> str:
    """Return the command that grants a member a role on the service account `account`.

    `role` is a key of ROLES, and `member` has the form of IAM policies.
    """
    return gcloud(
        *("iam", "service-accounts", "add-iam-policy-binding", names.email(account)),
        *(f"--member={member}", f"--role={names.role(role)}", "--condition=None", "--format=none"),
    )


def _take_back(described: str, state: str, undelete: str) -> str:
    """Return the command that runs `undelete` if the command `described` prints `state`.

    A failure of `described` counts as another state.
    """
    return f'if [ "$({described} 2> /dev/null || true)" = {state} ]; then {undelete}; fi'


def _create_if_missing(describe: str, create: str) -> str:
    """Return the command that runs `create` if the command `describe` fails."""
    return f"{describe} > /dev/null 2>&1 || {create}"


def _update_or_create(describe: str, update: str, create: str) -> str:
    """Return the command that runs `update` if `describe` succeeds, and `create` otherwise."""
    return f"if {describe} > /dev/null 2>&1; then {update}; else {create}; fi"


def gcloud(*words: str) -> str:
    """Return the shell-quoted gcloud command with the given arguments."""
    return shlex.join(("gcloud", *words))
