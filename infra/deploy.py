"""`python -m infra.deploy`: what `detcloud deploy` runs, with an answer in JSON.

    CLOUD    through Pulumi's engine, which is a program that must be installed
    export   as Terraform's JSON, with the functions' archives in the same folder

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

from infra.clouds import DEFAULT_CLOUD, PROGRAMS, load_program
from infra.stack_program import PROJECT, SettingsInvalid, StackProgram
from infra.terraform.export import FILE, export

CLUSTER_CONFIG = "clusterConfig"
ADMIN = f"{PROJECT}:adminSha256"
NO_ENGINE = (
    "Pulumi's engine is not installed; https://www.pulumi.com/docs/install says how. "
    "`detcloud deploy export` writes the same stack for Terraform instead"
)


class DeployFailed(Exception):
    """The deployment cannot be done; the message is for users."""


def main() -> int:
    """Print the outcome, or `error`, as JSON; 1 where it failed."""
    options = _options()
    try:
        answer = _export(options) if options.how == "export" else _deploy(options)
    except SettingsInvalid as error:
        return _print_error("\n".join([f"{options.settings} was refused", *error.problems]))
    except (DeployFailed, pulumi.RunError) as error:
        return _print_error(str(error))
    except automation.CommandError as error:
        return _print_error(f"Pulumi failed; it said:\n{str(error).strip()[-2000:]}")
    except OSError as error:
        where = error.filename or options.settings
        return _print_error(f"{where}: {error.strerror or error}")
    print(json.dumps(answer))
    return 0


def _print_error(why: str) -> int:
    print(json.dumps({"error": why}))
    return 1


def _deploy(options: argparse.Namespace) -> dict[str, Any]:
    if shutil.which("pulumi") is None:
        raise DeployFailed(NO_ENGINE)
    program = load_program(options.how)
    config = _stack_config(program, options, Path.home() / ".detcloud" / "functions")
    for line in program.complete_config(options.team, config):
        _print_progress(f"warning: {line}")
    stack = automation.create_or_select_stack(options.team, PROJECT, program.run)
    stack.set_all_config({name: automation.ConfigValue(text) for name, text in config.items()})
    if options.preview:
        changes = stack.preview(on_output=_print_progress, color="never").change_summary
        return {"changes": {str(getattr(op, "value", op)): n for op, n in changes.items()}}
    _write_admin_digest(options)
    outputs = stack.up(on_output=_print_progress, color="never").outputs
    return _answer(config, {name: it.value for name, it in outputs.items()})


def _export(options: argparse.Namespace) -> dict[str, Any]:
    program = load_program(options.cloud)
    config = _stack_config(program, options, options.output)
    export(program.run, program.terraform, options.team, config, options.output)
    _write_admin_digest(options)
    archives = [Path(config[f"{PROJECT}:{name}"]).name for name in program.archives.kinds]
    return _answer(config, {}) | {"files": [FILE, *archives]}


def _answer(config: Mapping[str, str], outputs: Mapping[str, object]) -> dict[str, Any]:
    return {"admin_sha256": config[ADMIN], "outputs": dict(outputs)}


def _print_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _stack_config(
    program: StackProgram, options: argparse.Namespace, folder: Path
) -> dict[str, str]:
    """Return the stack's configuration with whole paths, an administrator, and archives, which are
    built in `folder` where none are named.

    Raises:
        SettingsInvalid: something is wrong with it.
    """
    config = _read_config(options.settings)
    archives = {f"{PROJECT}:{name}": kind for name, kind in program.archives.kinds.items()}
    for key in (f"{PROJECT}:{CLUSTER_CONFIG}", *archives):
        if key in config:
            config[key] = str(options.settings.absolute().parent / config[key])
    config.setdefault(ADMIN, options.admin_sha256)
    missing = {key: kind for key, kind in archives.items() if key not in config}
    # Everything else is looked at before half a minute goes into each.
    report = program.check_config(options.team, {**config, **dict.fromkeys(missing, __file__)})
    for warning in report.warnings:
        _print_progress(f"warning: {warning}")
    for key, kind in missing.items():
        _print_progress(f"building {program.archives.name(kind, report.architecture)}")
        config[key] = str(program.archives.build(kind, report.architecture, folder))
    program.check_config(options.team, config)
    return config


def _read_config(file: Path) -> dict[str, str]:
    """Read the file's map as Pulumi would hand it on: texts, and JSON for all that is none."""
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


def _write_admin_digest(options: argparse.Namespace) -> None:
    """Write the administrator's digest into the settings, where everybody who deploys has it: with
    another one, the first administrator would be none any more.
    """
    text = options.settings.read_text(encoding="utf-8")
    if ADMIN in _read_config(options.settings):
        return
    line = f'  {ADMIN}: "{options.admin_sha256}"\n'
    edited, n = re.subn(r"(?m)^config:[ \t]*(#.*)?\n", lambda found: found[0] + line, text, count=1)
    if not n:
        raise DeployFailed(f"{options.settings} has no line `config:`; add to that map: {line}")
    partial = options.settings.with_name(f".{options.settings.name}.partial")
    partial.write_text(edited, encoding="utf-8")
    partial.replace(options.settings)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m infra.deploy")
    parser.add_argument("how", choices=(*PROGRAMS, "export"))
    parser.add_argument("--cloud", choices=PROGRAMS, default=DEFAULT_CLOUD, help="of an export")
    parser.add_argument("--team", required=True)
    parser.add_argument("--settings", type=Path, required=True)
    parser.add_argument("--admin-sha256", required=True)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--preview", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
