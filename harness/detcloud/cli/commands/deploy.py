"""`detcloud deploy`: a team's cluster in a cloud, or as files for Terraform, in a child process."""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from detcloud.cli.framework.argument_types import parse_team
from detcloud.cli.framework.command_parser import Handler, Handlers
from detcloud.cli.framework.deployable_clouds import CLOUDS, DeployableCloud, find_cloud
from detcloud.cli.framework.options import add_cloud_option
from detcloud.cli.local.server_modules import run_module
from detcloud.client.endpoint import configured_url, store_credentials
from detcloud.client.team import TeamToken, load_team_token
from detcloud.shared.errors import DetcloudError

MODULE = "infra.deploy"


def add_cloud_arguments(parser: ArgumentParser) -> None:
    _add_stack_options(parser)
    parser.add_argument(
        "--preview", action="store_true", help="show what would change, and change nothing"
    )


def deploy_to_cloud(cloud: DeployableCloud, arguments: Namespace) -> int:
    preview = ["--preview"] if arguments.preview else []
    token, answer = _run_deployment(cloud.name, cloud, arguments, *preview)
    if arguments.preview:
        changes = ", ".join(f"{n} to {what}" for what, n in sorted(answer["changes"].items()))
        print(f"nothing was changed; there would be {changes or 'nothing to do'}")
        return 0
    url = answer["outputs"]["url"]
    print(f"the cluster {answer['outputs']['cluster']} is up at {url}")
    _print_token_hint(token, answer["admin_sha256"], url)
    return 0


def add_export_arguments(parser: ArgumentParser) -> None:
    _add_stack_options(parser)
    parser.add_argument(
        "--output", type=Path, required=True, metavar="DIR", help="where the files go"
    )
    add_cloud_option(parser)


def export_to_terraform(arguments: Namespace) -> int:
    output, cloud = arguments.output.absolute(), find_cloud(arguments.cloud)
    flags = f"--output={output}", f"--cloud={cloud.name}"
    token, answer = _run_deployment("export", cloud, arguments, *flags)
    print(f"{output} holds {' and '.join(answer['files'])}")
    print(f"`terraform -chdir={output} init`, then `terraform -chdir={output} apply` makes it")
    if answer["admin_sha256"] == token.sha256:
        print(f"the first administrator's token is in {token.path}")
    return 0


def _add_stack_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--team", type=parse_team, required=True, metavar="NAME", help="whose cluster it is"
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="the stack's settings (default: Pulumi.NAME.yaml in this folder)",
    )


def _run_deployment(
    how: str, cloud: DeployableCloud, arguments: Namespace, *flags: str
) -> tuple[TeamToken, dict[str, Any]]:
    """Run the child; return the administrator's token, whose digest it gets, and its answer.

    Raises:
        DetcloudError: it failed.
    """
    missing = [name for name in cloud.packages if find_spec(name) is None]
    if missing:
        raise DetcloudError(f"this needs {', '.join(missing)}; pip install 'detcloud[infra]'")
    settings = arguments.config or Path(f"Pulumi.{arguments.team}.yaml")
    if not settings.is_file():
        guide = f"docs/{cloud.name}.md"
        raise DetcloudError(f"there is no file {settings}; {guide} shows what is in one")
    token = load_team_token(arguments.team)
    words = [how, f"--team={arguments.team}", f"--settings={settings}", *flags]
    done = run_module(MODULE, [*words, f"--admin-sha256={token.sha256}"], _echo_line)
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise DetcloudError(f"the deployment failed: {done.stderr.strip()[-2000:]}") from None
    if "error" in answer:
        raise DetcloudError(answer["error"])
    return token, answer


def _echo_line(line: str) -> bool:
    """Show what the child says while it works; it stays among the errors, for a failure."""
    sys.stderr.write(line)
    return False


def _print_token_hint(token: TeamToken, sha256: str, url: str) -> None:
    """Print how to speak to the new cluster; `sha256` is of its first administrator's token."""
    if sha256 != token.sha256:
        print(
            "its first administrator is somebody else, as the settings say: ask them for "
            "`detcloud token create`, and keep what you get with `detcloud token login`"
        )
    elif configured_url() in (None, url):
        path = store_credentials(url, token.token)
        print(f"commands speak to it from now on; its token is kept in {path}")
    else:
        print("commands go on speaking to another cluster; to speak to this one from now on:")
        print(f"detcloud --url {url} token login - < {token.path}")


HANDLERS: Handlers = {
    **{
        f"deploy {cloud.name}": Handler(add_cloud_arguments, partial(deploy_to_cloud, cloud))
        for cloud in CLOUDS
    },
    "deploy export": Handler(add_export_arguments, export_to_terraform),
}
