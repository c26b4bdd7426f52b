"""The shell script that removes everything that `trust_script` created on Google Cloud."""

import shlex
from collections.abc import Iterator

from infra.gcp.names import Names
from infra.gcp.policies import PROJECT
from infra.gcp.trust_policies import Trust, list_remote_grants
from infra.gcp.trust_script import (
    ACCOUNTS,
    TRUST_ROLE,
    begin_lines,
    check_lines,
    gcloud,
    grant_condition,
)
from provisioner.clouds.provider import CLUSTER_TAG


def render_removal(trust: Trust, regions: tuple[str, ...]) -> str:
    """Return the bash script that deletes grants, network, accounts, roles and identity pool.

    The script stops with an error while instances of the cluster exist, or if the project contains
    another cluster of this name. `regions` are the regions with subnetworks.
    """
    names = trust.names
    # Include the grants for logs, because pools may have written logs in the past.
    grants = list_remote_grants(names, regions, logs_instances=True)
    roles = [*dict.fromkeys(grant.role for grant in grants), TRUST_ROLE]
    done = f"{names.project} has nothing any more of the cluster {names.cluster}"
    lines = [
        "#!/bin/bash",
        f"# Removes what the cluster {names.cluster}, which runs {trust.launcher.place}, has",
        f"# in the project {names.project}, once no instance is left there. To run it again",
        "# removes what is left alone. Google keeps roles for 7 days and pools of identities for",
        "# 30, and the script that makes the remote account takes them back.",
        *begin_lines(names),
        *check_lines(trust),
        *_instance_lines(trust),
        *(
            _grant_removal(names, grant.account, grant.role, grant_condition(grant))
            for grant in grants
            if grant.place.kind == PROJECT
        ),
        *_network_lines(names),
        *(_removal(("iam", "service-accounts"), names.email(account)) for account in ACCOUNTS),
        *(_role_removal(names, role) for role in roles),
        *([] if trust.launcher.is_server else [_pool_removal(trust)]),
        f"echo {shlex.quote(done)}",
    ]
    return "\n".join([*lines, ""])


def _pool_removal(trust: Trust) -> str:
    """Return the command that deletes the pool of identities."""
    pool = (trust.pool, "--location=global")
    return _kept_removal(("iam", "workload-identity-pools"), pool, "state", "DELETED")


def _instance_lines(trust: Trust) -> Iterator[str]:
    """Yield script lines that stop the script while instances of the cluster exist."""
    names = trust.names
    labelled = f"--filter=labels.{CLUSTER_TAG}={names.label}"
    listed = gcloud("compute", "instances", "list", labelled, "--format=value(name)")
    remedy = trust.launcher.remedy_for_instances
    yield f"living=$({listed})"
    yield (
        f'if [ -n "$living" ]; then echo "instances are left: $living;" {shlex.quote(remedy)} >&2;'
        " exit 1; fi"
    )


def _grant_removal(names: Names, account: str, role: str, condition: str) -> str:
    """Return the command that removes a role in the project from an account.

    The command ignores all errors, for example if the account does not have the role.
    """
    removed = gcloud(
        *("projects", "remove-iam-policy-binding", names.project),
        *(f"--member={names.member(account)}", f"--role={names.role(role)}"),
        *(f"--condition={condition}", "--format=none"),
    )
    return f"{removed} 2> /dev/null || true"


def _network_lines(names: Names) -> Iterator[str]:
    """Yield script lines that delete firewall rule, subnetworks of all regions, and network."""
    network = names.part("network")
    yield _removal(("compute", "firewall-rules"), names.part("within"))
    subnets = ("compute", "networks", "subnets")
    listed = gcloud(
        *subnets, "list", f"--network={network}", "--format=value(name,region.basename())"
    )
    yield f"{listed} | while read -r name region; do"
    yield f'  {gcloud(*subnets, "delete")} "$name" --region="$region" < /dev/null'
    yield "done"
    yield _removal(("compute", "networks"), network)


def _removal(kind: tuple[str, ...], name: str) -> str:
    """Return the command that deletes a resource, unless the resource is missing.

    `kind` has the words of gcloud for the resource's type, such as `compute networks`.
    """
    there, delete = (gcloud(*kind, verb, name) for verb in ("describe", "delete"))
    return f"if {there} > /dev/null 2>&1; then {delete}; fi"


def _role_removal(names: Names, role: str) -> str:
    """Return the command that deletes a custom role, unless missing or already deleted."""
    words = (names.role_id(role), f"--project={names.project}")
    return _kept_removal(("iam", "roles"), words, "deleted", "True")


def _kept_removal(kind: tuple[str, ...], words: tuple[str, ...], field: str, deleted: str) -> str:
    """Return the command that deletes a resource, unless missing or already deleted.

    Google still lists deleted resources of this type for some days. Then `field` has the value
    `deleted`. `kind` has the words of the gcloud command before the verb, and `words` the words
    after the verb.
    """
    described = gcloud(*kind, "describe", *words, f"--format=value({field})")
    state = f"$({described} 2> /dev/null || echo {deleted})"
    return f'if [ "{state}" != {deleted} ]; then {gcloud(*kind, "delete", *words)}; fi'
