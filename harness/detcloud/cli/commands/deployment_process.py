"""Runs of `infra.deploy` in a child process, and the options that name a team's stack.

The child needs the packages of the extra `infra`.
"""

from __future__ import annotations

import json
import sys
from argparse import ArgumentParser, Namespace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from detcloud.cli.framework.argument_types import parse_team
from detcloud.cli.framework.deployable_clouds import DeployableCloud
from detcloud.cli.local.server_modules import run_module
from detcloud.client.team import TeamToken, load_team_token
from detcloud.shared.errors import DetcloudError

MODULE = "infra.deploy"


def add_stack_options(parser: ArgumentParser) -> None:
    """Add the required option `--team`, checked by `parse_team`, and `--config`, the path of the
    settings. The default of `config` is None, for Pulumi.TEAM.yaml in the working folder.
    """
    parser.add_argument(
        "--team",
        type=parse_team,
        required=True,
        metavar="NAME",
        help="the team that owns the cluster",
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="the stack's settings (default: Pulumi.NAME.yaml in this folder)",
    )


def run_deployment(
    how: str, cloud: DeployableCloud, arguments: Namespace, *flags: str
) -> tuple[TeamToken, dict[str, Any]]:
    """Run `infra.deploy` in a child process. Return the team's administrator token and the child's
    answer.

    A missing token file is created in ~/.detcloud/teams. The child gets only the digest of the
    token. The child's stderr is printed as it arrives. The wait has no time limit.

    Args:
        how: the child's command, such as `preview`.
        arguments: `team`, and `config`, the settings file or None for Pulumi.TEAM.yaml.
        flags: further options of the child.

    Raises:
        DetcloudError: packages, the server or the settings file are missing, the token file is
            unusable, or the child failed. An error of the child is the message.
    """
    missing = [name for name in cloud.packages if find_spec(name) is None]
    if missing:
        raise DetcloudError(
            f"missing packages: {', '.join(missing)}; pip install 'detcloud[infra]'"
        )
    settings = arguments.config or Path(f"Pulumi.{arguments.team}.yaml")
    if not settings.is_file():
        guide = f"docs/{cloud.name}.md"
        raise DetcloudError(f"settings file {settings} does not exist; {guide} describes its keys")
    token = load_team_token(arguments.team)
    stack = f"--cloud={cloud.name}", f"--team={arguments.team}", f"--settings={settings}"
    words = [how, *stack, *flags]
    done = run_module(MODULE, [*words, f"--admin-sha256={token.sha256}"], _echo_line)
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise DetcloudError(f"the deployment failed: {done.stderr.strip()[-2000:]}") from None
    if "error" in answer:
        raise DetcloudError(answer["error"])
    return token, answer


def _echo_line(line: str) -> bool:
    """Print a line of the child's stderr to stderr. Return False, so that `run_module` keeps the
    line for an error message too.
    """
    sys.stderr.write(line)
    return False
