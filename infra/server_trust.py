"""`python -m infra.server_trust`: the remote accounts of a cluster on own machines, as scripts.

The module implements `detcloud deploy trust local`, and prints JSON. No cloud is called.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from control_plane.config.__main__ import read_config
from control_plane.config.pools import ClusterConfig, check_cluster
from control_plane.config.problems import ConfigInvalid
from control_plane.config.server_clouds import AwsCloud, GoogleCloud, ServerClouds
from control_plane.config.server_clouds import check_server_clouds as check_clouds
from infra.clouds import open_remote_account_in
from infra.remote_accounts import SERVER, Launcher, RemoteAccount

# Only the federation of identities needs the number of the project.
_NO_NUMBER = "00000"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print `commands`: the scripts that create or, with --remove, remove the remote accounts.

    Return 0. For an invalid file, print the text `error` and return 1. Invalid options end the
    process with status 2.
    """
    options = _parse_options(arguments)
    path = options.clouds
    try:
        clouds = check_clouds(read_config(str(path)))
        path = options.config
        cluster = ClusterConfig() if path is None else check_cluster(read_config(str(path)))
    except ConfigInvalid as error:
        lines = (problem.text(str(path)) for problem in error.problems)
        print(json.dumps({"error": "\n".join(lines)}))
        return 1
    accounts = open_accounts(clouds, options.cluster_id)
    scripts = (
        account.removal_commands() if options.remove else account.commands(cluster)
        for account in accounts
    )
    print(json.dumps({"commands": "\n".join(scripts)}))
    return 0


def open_accounts(clouds: ServerClouds, cluster_id: str) -> Iterator[RemoteAccount]:
    """Yield the remote accounts of a cluster on own machines, in the order of the clouds' names."""
    for kind, cloud in clouds.clouds.items():
        role = cloud.principal or ""
        launcher = Launcher(SERVER, cluster_id, clouds.name, role, cluster_id)
        yield open_remote_account_in(kind, _describe(cloud), launcher)


def _describe(cloud: AwsCloud | GoogleCloud) -> dict[str, object]:
    """Return the description of a remote account in the form of a stack's setting."""
    if isinstance(cloud, AwsCloud):
        return {
            "account": cloud.account,
            "region": cloud.region,
            "subnets": cloud.subnets,
            "securityGroup": cloud.security_group,
        }
    return {
        "project": cloud.project,
        "projectNumber": _NO_NUMBER,
        "region": cloud.region,
        "regions": cloud.regions,
    }


def _parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options, by default of the command line."""
    parser = argparse.ArgumentParser(prog="python -m infra.server_trust")
    parser.add_argument("--clouds", type=Path, required=True)
    parser.add_argument("--cluster-id", required=True)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--remove", action="store_true")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
