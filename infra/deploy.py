"""`python -m infra.deploy`: what `detcloud deploy` runs, with an answer in JSON.

    deploy   through Pulumi's engine, which is a program that must be installed
    preview  what a deployment would change, resource by resource
    check    whether the stack can run in the account
    policy   what the deployer may have to do
    trust    the commands that make the stack's remote accounts in other clouds, or with --remove
    remove them drain    the end of what the cluster made by itself, such as instances
    rollback the functions of the deployment before, or with --forward of the newest
    prune    the end of functions' versions that no rollback needs
    destroy  that, and then the stack
    export   as Terraform's JSON, with the functions' archives in the same folder

The settings are a file of Pulumi's, `Pulumi.TEAM.yaml`; paths in it begin at its folder.
"""

import argparse
import contextlib
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import pulumi
import yaml
from pulumi import automation

from infra import engine
from infra.clouds import DEFAULT_CLOUD, PROGRAMS, load_program
from infra.dropped_accounts import OTHER_CLOUDS, check_dropped_accounts
from infra.engine import DeployFailed
from infra.findings import error_lines, warning_lines
from infra.stack_program import (
    PROJECT,
    REMOTE_SETTING,
    DrainFailed,
    PruneFailed,
    RollbackFailed,
    SettingsInvalid,
    StackProgram,
)
from infra.terraform.export import FILE, export

CLUSTER_CONFIG = "clusterConfig"
ADMIN = f"{PROJECT}:adminSha256"
PROTECT = f"{PROJECT}:protect"
BUILT: Final = Path.home() / ".detcloud" / "functions"

Answer = dict[str, Any]


def main() -> int:
    """Print the outcome, or `error`, as JSON; 1 where it failed."""
    options = _options()
    try:
        answer = HOWS[options.how](load_program(options.cloud), options)
    except SettingsInvalid as error:
        return _print_error("\n".join([f"{options.settings} was refused", *error.problems]))
    except (DeployFailed, DrainFailed, RollbackFailed, PruneFailed, pulumi.RunError) as error:
        return _print_error(str(error))
    except automation.CommandError as error:
        return _print_error(f"Pulumi failed; its output:\n{str(error).strip()[-2000:]}")
    except OSError as error:
        where = error.filename or options.settings
        return _print_error(f"{where}: {error.strerror or error}")
    print(json.dumps(answer))
    return 0


def _print_error(why: str) -> int:
    print(json.dumps({"error": why}))
    return 1


def _deploy(program: StackProgram, options: argparse.Namespace) -> Answer:
    engine.require_engine()
    config = _checked_config(program, options)
    stack = engine.open_stack(program, options.team)
    _check_dropped_accounts(program, options, config, stack)
    engine.configure(stack, config)
    if options.preview:
        return {"changes": engine.count_changes(stack, _print_progress)}
    _write_admin_digest(options)
    outputs = engine.make_stack(stack, _print_progress)
    program.finish(options.team, config, _print_progress)
    try:
        program.prune(options.team, config, _print_progress)
    except (PruneFailed, RollbackFailed) as error:
        # The cluster is deployed; the next deployment tries again.
        _print_progress(f"warning: {error}")
    return _answer(config, outputs)


def _preview(program: StackProgram, options: argparse.Namespace) -> Answer:
    engine.require_engine()
    config = _checked_config(program, options)
    stack = engine.open_stack(program, options.team, is_new=False)
    _check_dropped_accounts(program, options, config, stack)
    engine.configure(stack, config)
    return {"changes": engine.find_changes(program, stack, _print_progress)}


def _check_dropped_accounts(
    program: StackProgram,
    options: argparse.Namespace,
    config: Mapping[str, str],
    stack: automation.Stack,
) -> None:
    """Refuse to take a remote account away whose instances nobody would end any more. Raises
    DeployFailed.
    """
    before = engine.read_output(stack, REMOTE_SETTING)
    if not before or before == config.get(OTHER_CLOUDS):
        return
    try:
        for line in check_dropped_accounts(program, options.team, config, before, options.settings):
            _print_progress(f"warning: {line}")
    except DrainFailed as error:
        if not options.no_check:
            raise DeployFailed(f"{error}; --no-check deploys anyway") from None
        _print_progress(f"warning: {error}")


def _checked_config(program: StackProgram, options: argparse.Namespace) -> dict[str, str]:
    """Return the stack's configuration, once the account has been looked at.

    Raises:
        DeployFailed: something in the account lets the stack or a pool not run.
    """
    config = _completed_config(program, options)
    if not options.no_check:
        findings = program.check_account(options.team, config)
        for line in warning_lines(findings):
            _print_progress(f"warning: {line}")
        errors = error_lines(findings)
        if options.preview:
            for line in errors:
                _print_progress(f"error: {line}")
        elif errors:
            first = "the account was checked, and nothing was deployed; --no-check deploys anyway"
            raise DeployFailed("\n".join([first, *errors]))
    return _stack_config(program, options, BUILT, config)


def _completed_config(program: StackProgram, options: argparse.Namespace) -> dict[str, str]:
    """Return what the settings say, and what the cloud says where they leave it open."""
    config = _given_config(program, options)
    for line in program.complete_config(options.team, config):
        _print_progress(f"warning: {line}")
    return config


def _check(program: StackProgram, options: argparse.Namespace) -> Answer:
    findings = program.check_account(options.team, _completed_config(program, options))
    return {"findings": [finding.to_json() for finding in findings]}


def _policy(program: StackProgram, options: argparse.Namespace) -> Answer:
    config = _given_config(program, options)
    return {"policy": program.deployer_policy(options.team, config, options.key)}


def _trust(program: StackProgram, options: argparse.Namespace) -> Answer:
    config = _given_config(program, options)
    return {"commands": program.trust_commands(options.team, config, options.remove)}


def _drain(program: StackProgram, options: argparse.Namespace) -> Answer:
    config = _given_config(program, options)
    if config.get(PROTECT) != "false":
        # The table would refuse at the end, when nothing runs any more.
        raise DrainFailed(
            f"{options.settings}: the cluster is protected; set {PROTECT}: false and deploy first"
        )
    drained = program.drain(options.team, config, _print_progress)
    return {"instances": drained.instances, "templates": drained.templates}


def _rollback(program: StackProgram, options: argparse.Namespace) -> Answer:
    config = _given_config(program, options)
    moves = program.rollback(options.team, config, options.forward, _print_progress)
    return {"moves": [asdict(move) for move in moves]}


def _prune(program: StackProgram, options: argparse.Namespace) -> Answer:
    config = _given_config(program, options)
    return {"versions": program.prune(options.team, config, _print_progress)}


def _destroy(program: StackProgram, options: argparse.Namespace) -> Answer:
    engine.require_engine()
    stack = engine.open_stack(program, options.team, is_new=False)
    answer = _drain(program, options)
    engine.remove_stack(stack, options.team, _print_progress)
    config = _given_config(program, options)
    left = program.find_leftovers(options.team, config)
    elsewhere = program.find_remote_leftovers(options.team, config)
    return {**answer, "leftovers": left, "remote_leftovers": elsewhere}


def _export(program: StackProgram, options: argparse.Namespace) -> Answer:
    with _complete_folder(options.output) as folder:
        config = _stack_config(program, options, folder, _given_config(program, options))
        run = program.run_export or program.run
        export(run, program.terraform, options.team, config, folder)
        _write_admin_digest(options)
    keys = [f"{PROJECT}:{name}" for name in program.archives.kinds]
    archives = [Path(config[key]).name for key in keys if key in config]
    return _answer(config, {}) | {"files": [FILE, *archives]}


@contextlib.contextmanager
def _complete_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder whose files move into `folder` at the end, the one that refers to the others
    last; after a failure, `folder` is as before.
    """
    is_new = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".partial-") as partial:
            yield Path(partial)
            for file in sorted(Path(partial).iterdir(), key=lambda path: path.name == FILE):
                file.replace(folder / file.name)
    except BaseException:
        if is_new:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def _answer(config: Mapping[str, str], outputs: Mapping[str, object]) -> Answer:
    return {"admin_sha256": config[ADMIN], "outputs": dict(outputs)}


def _print_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _stack_config(
    program: StackProgram, options: argparse.Namespace, folder: Path, given: Mapping[str, str]
) -> dict[str, str]:
    """Return the stack's whole configuration, with the function archives that it needs.

    Archives that are not named are built in `folder`.

    Raises:
        SettingsInvalid: something is wrong with it.
    """
    config = dict(given)
    archives = {f"{PROJECT}:{name}": kind for name, kind in program.archives.kinds.items()}
    missing = {key: kind for key, kind in archives.items() if key not in config}
    # Everything else is looked at before half a minute goes into each.
    report = program.check_config(options.team, {**config, **dict.fromkeys(missing, __file__)})
    for warning in report.warnings:
        _print_progress(f"warning: {warning}")
    if not report.needs_archives:
        return {key: value for key, value in config.items() if key not in archives}
    for key, kind in missing.items():
        _print_progress(f"building {program.archives.name(kind, report.architecture)}")
        config[key] = str(program.archives.build(kind, report.architecture, folder))
    program.check_config(options.team, config)
    return config


def _given_config(program: StackProgram, options: argparse.Namespace) -> dict[str, str]:
    """Return what the settings say, with whole paths and an administrator."""
    config = _read_config(options.settings)
    for name in (CLUSTER_CONFIG, *program.archives.kinds):
        key = f"{PROJECT}:{name}"
        if key in config:
            config[key] = str(options.settings.absolute().parent / config[key])
    config.setdefault(ADMIN, options.admin_sha256)
    return config


def _read_config(file: Path) -> dict[str, str]:
    """Read the file's map as Pulumi would hand it on: texts, and JSON for everything else."""
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where else ""
        raise SettingsInvalid([f"{file}{line}: this is not valid YAML"]) from None
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
    parser.add_argument("how", choices=tuple(HOWS))
    parser.add_argument("--cloud", choices=PROGRAMS, default=DEFAULT_CLOUD)
    parser.add_argument("--team", required=True)
    parser.add_argument("--settings", type=Path, required=True)
    parser.add_argument("--admin-sha256", required=True)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--preview", action="store_true")
    parser.add_argument("--no-check", action="store_true")
    parser.add_argument("--key", action="store_true")
    parser.add_argument("--forward", action="store_true")
    parser.add_argument("--remove", action="store_true")
    return parser.parse_args()


HOWS: Final[Mapping[str, Callable[[StackProgram, argparse.Namespace], Answer]]] = {
    "deploy": _deploy,
    "preview": _preview,
    "check": _check,
    "policy": _policy,
    "trust": _trust,
    "drain": _drain,
    "rollback": _rollback,
    "prune": _prune,
    "destroy": _destroy,
    "export": _export,
}


if __name__ == "__main__":
    sys.exit(main())
