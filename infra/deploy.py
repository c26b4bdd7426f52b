"""`python -m infra.deploy`: what `detcloud deploy` runs, with an answer in JSON.

    aws      through Pulumi's engine, which is a program that must be installed
    export   as Terraform's JSON, with the functions' archives beside it

The settings are a file of Pulumi's, `Pulumi.TEAM.yaml`; paths in it begin at its folder.
"""

import argparse
import json
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pulumi
import yaml
from pulumi import automation

from control_plane.config.images import OURS
from control_plane.config.pool_settings import task_defaults
from control_plane.config.pools import ClusterConfig, check_cluster
from control_plane.config.providers import AwsProvider
from infra import bundle
from infra.aws.program import PROJECT, checked, run
from infra.aws.settings import SettingsInvalid
from infra.terraform import FILE, export

ARCHIVES = {"archive": "functions", "suggestArchive": "suggest"}
PATHS = ("clusterConfig", *ARCHIVES)
ADMIN = f"{PROJECT}:adminSha256"
NO_ENGINE = (
    "Pulumi's engine is not installed; https://www.pulumi.com/docs/install says how. "
    "`detcloud deploy export` writes the same stack for Terraform instead"
)


class DeployFailed(Exception):
    """The message is for users."""


def main() -> int:
    """Prints what became of it, or `error`; 1 where it failed."""
    options = _options()
    try:
        answer = _deploy(options) if options.how == "aws" else _export(options)
    except SettingsInvalid as error:
        return _failed("\n".join([f"{options.settings} was refused", *error.problems]))
    except (DeployFailed, pulumi.RunError) as error:
        return _failed(str(error))
    except automation.CommandError as error:
        return _failed(f"Pulumi failed; it said:\n{str(error).strip()[-2000:]}")
    except OSError as error:
        return _failed(f"{error.filename or options.settings}: {error.strerror or error}")
    print(json.dumps(answer))
    return 0


def _failed(why: str) -> int:
    print(json.dumps({"error": why}))
    return 1


def _deploy(options: argparse.Namespace) -> dict[str, Any]:
    if shutil.which("pulumi") is None:
        raise DeployFailed(NO_ENGINE)
    config = _config(options, Path.home() / ".detcloud" / "functions")
    stack = automation.create_or_select_stack(options.team, PROJECT, run)
    stack.set_all_config({name: automation.ConfigValue(text) for name, text in config.items()})
    if options.preview:
        changes = stack.preview(on_output=_tell, color="never").change_summary
        return {"changes": {str(getattr(op, "value", op)): n for op, n in changes.items()}}
    _keep_digest(options)
    outputs = stack.up(on_output=_tell, color="never").outputs
    return _answer(config, {name: it.value for name, it in outputs.items()})


def _export(options: argparse.Namespace) -> dict[str, Any]:
    config = _config(options, options.output)
    export(run, options.team, config, options.output)
    _keep_digest(options)
    archives = [Path(config[f"{PROJECT}:{name}"]).name for name in ARCHIVES]
    return _answer(config, {}) | {"files": [FILE, *archives]}


def _answer(config: Mapping[str, str], outputs: Mapping[str, object]) -> dict[str, Any]:
    return {"admin_sha256": config[ADMIN], "outputs": dict(outputs)}


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _config(options: argparse.Namespace, folder: Path) -> dict[str, str]:
    """The stack's configuration with whole paths, an administrator, and archives, which are built
    in `folder` where none are named.

    Raises:
        SettingsInvalid: something is wrong with it.
    """
    config = _read(options.settings)
    for key in (f"{PROJECT}:{name}" for name in PATHS):
        if key in config:
            config[key] = str(options.settings.absolute().parent / config[key])
    config.setdefault(ADMIN, options.admin_sha256)
    archives = {f"{PROJECT}:{name}": kind for name, kind in ARCHIVES.items()}
    lacking = {key: kind for key, kind in archives.items() if key not in config}
    # Everything else is looked at before half a minute goes into each.
    settings, text = checked(options.team, {**config, **dict.fromkeys(lacking, __file__)})
    if pools := _without_image(check_cluster(text)):
        _tell(
            f"warning: {settings.cluster_config}: pools {', '.join(pools)}: neither "
            "provider.image_id nor task_container_defaults.image is said, so trials run in "
            f"{OURS.cpu} or {OURS.cuda}, which no registry has; docs/aws.md says how to make one, "
            "under The image of trials"
        )
    target = bundle.TARGETS[settings.architecture]
    for key, kind in lacking.items():
        _tell(f"building {bundle.archive_name(kind, target.name)}")
        config[key] = str(bundle.build(target, folder, kind))
    checked(options.team, config)
    return config


def _without_image(cluster: ClusterConfig) -> list[str]:
    """Pools whose instances would look for the images that are built where they are used."""
    return [
        pool.pool_name
        for pool in cluster.resource_pools
        if isinstance(pool.provider, AwsProvider)
        and not pool.provider.image_id
        and "image" not in task_defaults(pool, cluster).get("environment", {})
    ]


def _read(file: Path) -> dict[str, str]:
    """What the file says, as Pulumi would hand it on: texts, and JSON for all that is none."""
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where else ""
        raise SettingsInvalid([f"{file}{line}: this is no YAML"]) from None
    config = document.get("config") if isinstance(document, dict) else None
    if not isinstance(config, dict):
        raise SettingsInvalid([f"{file} must have a map `config`, with names as {PROJECT}:region"])
    return {
        str(name): value if isinstance(value, str) else json.dumps(value)
        for name, value in config.items()
    }


def _keep_digest(options: argparse.Namespace) -> None:
    """Writes the administrator's digest into the settings, where everybody who deploys has it: with
    another one, the first administrator would be none any more.
    """
    text = options.settings.read_text(encoding="utf-8")
    if ADMIN in _read(options.settings):
        return
    line = f'  {ADMIN}: "{options.admin_sha256}"\n'
    kept, n = re.subn(r"(?m)^config:[ \t]*(#.*)?\n", lambda found: found[0] + line, text, count=1)
    if not n:
        raise DeployFailed(f"{options.settings} has no line `config:`; add to that map: {line}")
    partial = options.settings.with_name(f".{options.settings.name}.partial")
    partial.write_text(kept, encoding="utf-8")
    partial.replace(options.settings)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m infra.deploy")
    parser.add_argument("how", choices=("aws", "export"))
    parser.add_argument("--team", required=True)
    parser.add_argument("--settings", type=Path, required=True)
    parser.add_argument("--admin-sha256", required=True)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--preview", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
