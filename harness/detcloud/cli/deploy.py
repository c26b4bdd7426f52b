"""Deploys a team's cluster to AWS, or writes it down for Terraform, in a child process."""

from __future__ import annotations

import json
import re
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from detcloud import DetcloudError
from detcloud.cli.child import run_module
from detcloud.client.endpoint import known_url, remember
from detcloud.client.team import TeamToken, team_token

MODULE = "infra.deploy"
PACKAGES = ("pulumi", "pulumi_aws")
_TEAM = re.compile(r"[a-z][a-z0-9-]{0,19}")


def aws_arguments(parser: ArgumentParser) -> None:
    _add_options(parser)
    parser.add_argument(
        "--preview", action="store_true", help="show what would change, and change nothing"
    )


def aws(arguments: Namespace) -> int:
    preview = ["--preview"] if arguments.preview else []
    token, found = _deployed("aws", arguments, *preview)
    if arguments.preview:
        changes = ", ".join(f"{n} to {what}" for what, n in sorted(found["changes"].items()))
        print(f"nothing was changed; there would be {changes or 'nothing to do'}")
        return 0
    url = found["outputs"]["url"]
    print(f"the cluster {found['outputs']['cluster']} is up at {url}")
    _tell_of_token(token, found["admin_sha256"], url)
    return 0


def export_arguments(parser: ArgumentParser) -> None:
    _add_options(parser)
    parser.add_argument(
        "--output", type=Path, required=True, metavar="DIR", help="where the files go"
    )


def export(arguments: Namespace) -> int:
    output = arguments.output.absolute()
    token, found = _deployed("export", arguments, f"--output={output}")
    print(f"{output} holds {' and '.join(found['files'])}")
    print(f"`terraform -chdir={output} init`, then `terraform -chdir={output} apply` makes it")
    if found["admin_sha256"] == token.sha256:
        print(f"the first administrator's token is in {token.path}")
    return 0


def _add_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--team", type=_team, required=True, metavar="NAME", help="whose cluster it is"
    )
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="the stack's settings (default: Pulumi.NAME.yaml in this folder)",
    )


def _team(text: str) -> str:
    if not _TEAM.fullmatch(text):
        raise ArgumentTypeError(
            f"{text!r} is no team; expected 1 to 20 small letters, digits and hyphens"
        )
    return text


def _deployed(how: str, arguments: Namespace, *flags: str) -> tuple[TeamToken, dict[str, Any]]:
    """What the child answers, and the token that it was told the digest of.

    Raises:
        DetcloudError: it failed.
    """
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise DetcloudError(f"this needs {', '.join(missing)}; pip install 'detcloud[infra]'")
    settings = arguments.config or Path(f"Pulumi.{arguments.team}.yaml")
    if not settings.is_file():
        raise DetcloudError(f"there is no file {settings}; docs/aws.md shows what is in one")
    token = team_token(arguments.team)
    words = [how, f"--team={arguments.team}", f"--settings={settings}", *flags]
    done = run_module(MODULE, [*words, f"--admin-sha256={token.sha256}"], _told)
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise DetcloudError(f"the deployment failed: {done.stderr.strip()[-2000:]}") from None
    if "error" in found:
        raise DetcloudError(found["error"])
    return token, found


def _told(line: str) -> bool:
    """Shows what the child says while it works; the whole of it is told again if it fails."""
    sys.stderr.write(line)
    return False


def _tell_of_token(token: TeamToken, sha256: str, url: str) -> None:
    if sha256 != token.sha256:
        print(
            "its first administrator is somebody else, as the settings say: ask them for "
            "`detcloud token create`, and keep what you get with `detcloud token login`"
        )
    elif known_url() in (None, url):
        print(
            f"commands speak to it from now on; its token is kept in {remember(url, token.token)}"
        )
    else:
        print("commands go on speaking to another cluster; to speak to this one from now on:")
        print(f"detcloud --url {url} token login - < {token.path}")
