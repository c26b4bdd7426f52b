"""The script of gcloud's commands that make a cluster's side on Google Cloud: its trust in the
function that launches, two service accounts, roles, and a network.

Whoever may manage the project runs it once, and again for another region or after a release that
needs more: what is there stays, and roles get the permissions that they lack.
"""

import shlex
from collections.abc import Iterator
from typing import Final

from infra.gcp.names import Names
from infra.gcp.policies import ROLES, Grant
from infra.gcp.ranges import subnetwork_ranges
from infra.gcp.side_policies import MAPPING, PROVIDER_ID, Trust, list_side_grants

# The interfaces that the side's callers use.
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
    """Return the script."""
    grants = list_side_grants(trust.names, regions, logs_instances=logs_instances)
    lines = [
        *_head(trust),
        *_trust_lines(trust),
        *_account_lines(trust.names),
        *_role_lines(trust.names, [*dict.fromkeys(it.role for it in grants), TRUST_ROLE]),
        *_network_lines(trust.names, regions),
        *(_grant_line(trust.names, it) for it in grants),
        _binding_line(trust.names, "launcher", TRUST_ROLE, trust.member),
        f"echo {shlex.quote(f'{trust.names.project} is ready for the pools of its cluster')}",
    ]
    return "\n".join([*lines, ""])


def _head(trust: Trust) -> Iterator[str]:
    names, launcher = trust.names, trust.launcher
    yield "#!/bin/bash"
    yield f"# What the cluster {names.cluster}, which runs in {launcher.cloud}, needs for its pools"
    yield f"# in the project {names.project}. To run it again changes what is missing alone."
    yield "set -euo pipefail"
    yield f"export CLOUDSDK_CORE_PROJECT={names.project} CLOUDSDK_CORE_DISABLE_PROMPTS=1"
    taken = (
        f"{names.project} has a cluster {names.cluster} of its own, which would end the instances "
        "of this one: use another project"
    )
    described = _run("firestore", "databases", "describe", f"--database={names.database}")
    yield f"if {described} > /dev/null 2>&1; then echo {shlex.quote(taken)} >&2; exit 1; fi"
    yield _run("services", "enable", *(f"{it}.googleapis.com" for it in SERVICES))


def _trust_lines(trust: Trust) -> Iterator[str]:
    pools, place = ("iam", "workload-identity-pools"), "--location=global"
    about = f"--description=who launches instances of {trust.names.cluster}"
    yield _unless_there(
        _run(*pools, "describe", trust.pool, place),
        _run(*pools, "create", trust.pool, place, about),
    )
    providers = (*pools, "providers")
    where = (PROVIDER_ID, place, f"--workload-identity-pool={trust.pool}")
    said = (
        f"--account-id={trust.launcher.account}",
        f"--attribute-mapping={MAPPING}",
        f"--attribute-condition={trust.condition}",
    )
    yield _change_or_make(
        _run(*providers, "describe", *where),
        _run(*providers, f"update-{trust.launcher.cloud}", *where, *said),
        _run(*providers, f"create-{trust.launcher.cloud}", *where, *said),
    )


def _account_lines(names: Names) -> Iterator[str]:
    for account, title in ACCOUNTS.items():
        yield _unless_there(
            _run("iam", "service-accounts", "describe", names.email(account)),
            _run(
                *("iam", "service-accounts", "create", names.account_id(account)),
                f"--display-name={names.cluster}: {account}",
                f"--description={names.cluster}: {title}",
            ),
        )


def _role_lines(names: Names, roles: list[str]) -> Iterator[str]:
    for role in roles:
        where = (names.role_id(role), f"--project={names.project}")
        said = (
            f"--title={names.cluster}: {role.replace('_', ' ')}",
            f"--permissions={','.join(ROLES[role])}",
            "--stage=GA",
        )
        yield _change_or_make(
            _run("iam", "roles", "describe", *where),
            _run("iam", "roles", "update", *where, *said),
            _run("iam", "roles", "create", *where, *said),
        )


def _network_lines(names: Names, regions: tuple[str, ...]) -> Iterator[str]:
    network, firewall, tag = names.part("network"), names.part("within"), names.cluster
    yield _unless_there(
        _run("compute", "networks", "describe", network),
        _run(
            *("compute", "networks", "create", network, "--subnet-mode=custom"),
            *("--bgp-routing-mode=regional", "--mtu=8896"),
        ),
    )
    for region, block in zip(regions, subnetwork_ranges(), strict=False):
        name, where = names.part(region), f"--region={region}"
        yield _unless_there(
            _run("compute", "networks", "subnets", "describe", name, where),
            _run(
                *("compute", "networks", "subnets", "create", name, where),
                *(f"--network={network}", f"--range={block}"),
                "--enable-private-ip-google-access",
            ),
        )
    yield _unless_there(
        _run("compute", "firewall-rules", "describe", firewall),
        _run(
            *("compute", "firewall-rules", "create", firewall, f"--network={network}"),
            *("--direction=INGRESS", "--allow=all", f"--source-tags={tag}", f"--target-tags={tag}"),
        ),
    )


def _grant_line(names: Names, grant: Grant) -> str:
    condition = "None"
    if grant.condition:
        condition = f"title={grant.account} {grant.role},expression={grant.condition}"
    role, member = f"--role={names.role(grant.role)}", f"--member={names.member(grant.account)}"
    said = (member, role, f"--condition={condition}", "--format=none")
    match grant.place.kind:
        case "project":
            return _run("projects", "add-iam-policy-binding", names.project, *said)
        case "subnetwork":
            name, region = names.part(grant.place.name), f"--region={grant.place.name}"
            add = ("compute", "networks", "subnets", "add-iam-policy-binding")
            return _run(*add, name, region, member, role, "--format=none")
        case _:
            return _binding_line(names, grant.place.name, grant.role, names.member(grant.account))


def _binding_line(names: Names, account: str, role: str, member: str) -> str:
    """Return the command that gives a member a role at one of the service accounts."""
    return _run(
        *("iam", "service-accounts", "add-iam-policy-binding", names.email(account)),
        *(f"--member={member}", f"--role={names.role(role)}", "--condition=None", "--format=none"),
    )


def _unless_there(describe: str, create: str) -> str:
    return f"{describe} > /dev/null 2>&1 || {create}"


def _change_or_make(describe: str, update: str, create: str) -> str:
    return f"if {describe} > /dev/null 2>&1; then {update}; else {create}; fi"


def _run(*words: str) -> str:
    return shlex.join(("gcloud", *words))
