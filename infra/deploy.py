"""`python -m infra.deploy`: the implementation of `detcloud deploy`, which prints JSON.

    deploy   deploy the stack with Pulumi's engine, a separately installed program
    preview  list the changes that a deployment would make to each resource
    check    check whether the stack can run in the account
    policy   print the permissions that a deployer needs
    trust    print the commands that create remote accounts, or with --remove remove them
    drain    terminate the cluster's instances, and prevent further launches
    rollback move functions to the previous deployment, or with --forward to the newest
    prune    delete versions of functions that no rollback needs
    destroy  drain, and then remove the stack
    restore  restore the cluster's state from a moment, a backup or an export
    objects  restore lost objects of the stack's buckets
    verify   make a call of the self-test of a deployed cluster
    export   write the stack as Terraform's JSON, with the functions' archives

The settings are a file of Pulumi, `Pulumi.TEAM.yaml`. Paths in the file are relative to the file's
folder.
"""

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import pulumi
import yaml
from pulumi import automation

from infra import engine
from infra.clouds import load_program
from infra.complete_folder import complete_folder
from infra.deploy_options import parse_options
from infra.deployed_stores import RefreshChoice, needs_refresh
from infra.dropped_accounts import OTHER_CLOUDS, check_dropped_accounts
from infra.engine import DeployFailed
from infra.findings import error_lines, warning_lines
from infra.restoration import RestoreFailed, RestoreRequest, parse_time
from infra.stack_program import (
    PROJECT,
    REMOTE_SETTING,
    DrainFailed,
    PruneFailed,
    RollbackFailed,
    SettingsInvalid,
    StackProgram,
)
from infra.terraform.export import FILE, NoCounterpart, export
from infra.verification import VerifyFailed, run_part

CLUSTER_CONFIG = "clusterConfig"
ADMIN = f"{PROJECT}:adminSha256"
PROTECT = f"{PROJECT}:protect"
BUILT: Final = Path.home() / ".detcloud" / "functions"

EXPECTED: Final = (
    DeployFailed,
    DrainFailed,
    RestoreFailed,
    RollbackFailed,
    PruneFailed,
    VerifyFailed,
    pulumi.RunError,
)

Answer = dict[str, Any]


def main(
    arguments: Sequence[str] | None = None,
    load: Callable[[str], StackProgram] = load_program,
) -> int:
    """Run the command of the arguments, and print the answer as JSON.

    The default is the command line's arguments. `load` returns the stack program of a cloud.

    Return 0. After an expected error, print a map with the text `error` and return 1: invalid
    settings, a refused or failed operation, a failed engine or program, a stack that Terraform
    cannot express, and an unreadable file. Progress and warnings go to stderr. Invalid options end
    the process with status 2.
    """
    options = parse_options(arguments, tuple(HOWS))
    try:
        answer = HOWS[options.how](load(options.cloud), options)
    except SettingsInvalid as error:
        return _print_error("\n".join([f"{options.settings} was refused", *error.problems]))
    except EXPECTED as error:
        return _print_error(str(error))
    except NoCounterpart as error:
        return _print_error(f"Terraform cannot express the stack, which is a bug: {error}")
    except automation.CommandError as error:
        return _print_error(f"Pulumi failed; its output:\n{str(error).strip()[-2000:]}")
    except OSError as error:
        where = error.filename or options.settings
        return _print_error(f"{where}: {error.strerror or error}")
    print(json.dumps(answer))
    return 0


def _print_error(why: str) -> int:
    """Print a JSON map with the text `error` to stdout, and return the exit status 1."""
    print(json.dumps({"error": why}))
    return 1


def _deploy(program: StackProgram, options: argparse.Namespace) -> Answer:
    """Check the account, deploy and finish the stack, and prune versions; return the outputs.

    The answer has the `outputs` and `admin_sha256`. With --preview, return only `changes`, the
    number of resources by operation. Without --preview, write ADMIN into the settings file before
    the deployment. A failure to prune is a warning. Pulumi reads the resources from the cloud first
    if a store was lost or restored, or with --refresh.

    Raises:
        DeployFailed: the engine is missing, the check found errors, a dropped remote account still
            has instances, or a store was lost and --new-stores is missing.
        SettingsInvalid: the settings are invalid.
        CommandError: the engine fails.
        DrainFailed: the deployed cluster could not be restarted after an earlier drain.
        OSError: a file cannot be read or written.
    """
    engine.require_engine()
    config = _checked_config(program, options)
    stack = engine.open_stack(program, options.team)
    _check_dropped_accounts(program, options, config, stack)
    refresh = _needs_refresh(program, options, config, stack)
    engine.configure(stack, config)
    if options.preview:
        return {"changes": engine.count_changes(stack, _print_progress, refresh=refresh)}
    _write_admin_digest(options)
    outputs = engine.make_stack(stack, _print_progress, refresh=refresh)
    program.finish(options.team, config, _print_progress)
    try:
        program.prune(options.team, config, _print_progress)
    except (PruneFailed, RollbackFailed) as error:
        # The cluster is deployed; the next deployment tries again.
        _print_progress(f"warning: {error}")
    return _answer(config, outputs)


def _preview(program: StackProgram, options: argparse.Namespace) -> Answer:
    """Return `changes`: the change that a deployment would make to each resource.

    Store the configuration in Pulumi, but change no resource. Raise DeployFailed without an engine
    or a stack, or for a dropped remote account with instances; SettingsInvalid, CommandError and
    OSError.
    """
    engine.require_engine()
    config = _checked_config(program, options)
    stack = engine.open_stack(program, options.team, is_new=False)
    _check_dropped_accounts(program, options, config, stack)
    refresh = _needs_refresh(program, options, config, stack)
    engine.configure(stack, config)
    return {"changes": engine.find_changes(program, stack, _print_progress, refresh=refresh)}


def _needs_refresh(
    program: StackProgram,
    options: argparse.Namespace,
    config: Mapping[str, str],
    stack: automation.Stack,
) -> bool:
    """Return whether Pulumi must read all resources from the cloud before a deployment.

    Raise DeployFailed if a store was lost and --new-stores is missing, CommandError if the engine
    fails, and SettingsInvalid.
    """
    choice = RefreshChoice(options.cloud, options.refresh, options.new_stores)
    is_deployed = engine.is_deployed(stack)
    return needs_refresh(
        program, options.team, config, choice, _print_progress, is_deployed=is_deployed
    )


def _check_dropped_accounts(
    program: StackProgram,
    options: argparse.Namespace,
    config: Mapping[str, str],
    stack: automation.Stack,
) -> None:
    """Check the remote accounts that the new configuration drops from the deployed stack.

    Write removal scripts and print warnings about remaining resources. If instances remain or an
    account cannot be read, raise DeployFailed, or with --no-check only print a warning. Do nothing
    if the deployed stack has no remote accounts or the setting is unchanged. Raise CommandError if
    the engine fails, and OSError if a script cannot be written.
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
    """Return the stack's complete configuration after a check of the account.

    Print the warnings of the check. With --preview, print errors as well instead of raising. With
    --no-check, skip the check. Build the archives of functions that the settings do not name in
    BUILT.

    Raises:
        DeployFailed: the check found errors.
        SettingsInvalid: the configuration is invalid.
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
    """Return the configuration of the settings file, with defaults that the cloud determines.

    Print a warning for each default that could not be determined. Raise SettingsInvalid for an
    invalid file or configuration.
    """
    config = _given_config(program, options)
    for line in program.complete_config(options.team, config):
        _print_progress(f"warning: {line}")
    return config


def _check(program: StackProgram, options: argparse.Namespace) -> Answer:
    """Return `findings`: the results of the check of the account. Raise SettingsInvalid."""
    findings = program.check_account(options.team, _completed_config(program, options))
    return {"findings": [finding.to_json() for finding in findings]}


def _policy(program: StackProgram, options: argparse.Namespace) -> Answer:
    """Return `policy`: the deployer's permissions, or with --key or --launches other permissions.

    With --key, return the key's policy statement, and with --restore the permissions of a restore.
    With --launches, return the permissions for the check of launches; raise DeployFailed if the
    cloud's check needs none. Raise SettingsInvalid.
    """
    config = _given_config(program, options)
    if options.launches:
        if program.launch_policy is None:
            raise DeployFailed(
                "--launches is for AWS: the check of this cloud asks for no launches"
            )
        return {"policy": program.launch_policy(options.team, config)}
    if options.restore:
        return {"policy": program.restore_policy(options.team, config)}
    return {"policy": program.deployer_policy(options.team, config, options.key)}


def _trust(program: StackProgram, options: argparse.Namespace) -> Answer:
    """Return `commands`: the scripts for creating or, with --remove, removing remote accounts.

    Run no script. Raise SettingsInvalid.
    """
    config = _given_config(program, options)
    return {"commands": program.trust_commands(options.team, config, options.remove)}


def _drain(program: StackProgram, options: argparse.Namespace) -> Answer:
    """Terminate the cluster's instances for good, and return the numbers of removed resources.

    The answer has `instances` and `templates`. Raise DrainFailed if the drain fails, or, before any
    change, unless the settings have PROTECT: false. Raise SettingsInvalid.
    """
    config = _given_config(program, options)
    if config.get(PROTECT) != "false":
        # Otherwise, deleting the table would fail after the cluster has stopped.
        raise DrainFailed(
            f"{options.settings}: the cluster is protected; set {PROTECT}: false and deploy first"
        )
    drained = program.drain(options.team, config, _print_progress)
    return {"instances": drained.instances, "templates": drained.templates}


def _rollback(program: StackProgram, options: argparse.Namespace) -> Answer:
    """Move the functions to the previous deployment, or with --forward to the newest.

    Return `moves`. Raise RollbackFailed and SettingsInvalid.
    """
    config = _given_config(program, options)
    moves = program.rollback(options.team, config, options.forward, _print_progress)
    return {"moves": [asdict(move) for move in moves]}


def _prune(program: StackProgram, options: argparse.Namespace) -> Answer:
    """Delete versions of functions that no rollback needs, and return `versions`, their number.

    Raise PruneFailed, RollbackFailed and SettingsInvalid.
    """
    config = _given_config(program, options)
    return {"versions": program.prune(options.team, config, _print_progress)}


def _restore(program: StackProgram, options: argparse.Namespace) -> Answer:
    """Restore the cluster's state from --time or --source, and return the fields of the report.

    With `is_new_store` in the answer, a deployment must connect the store. Raise RestoreFailed and
    SettingsInvalid.
    """
    config = _completed_config(program, options)
    time = parse_time(options.time) if options.time else None
    request = RestoreRequest(time, options.source)
    return asdict(program.restore(options.team, config, request, _print_progress))


def _restore_objects(program: StackProgram, options: argparse.Namespace) -> Answer:
    """Restore lost objects of the buckets, and return `objects` and `checkpoints` of the report.

    With --time, restore the content of this moment. Raise RestoreFailed and SettingsInvalid.
    """
    moment = parse_time(options.time) if options.time else None
    config = _completed_config(program, options)
    return asdict(program.restore_objects(options.team, config, moment, _print_progress))


def _verify(program: StackProgram, options: argparse.Namespace) -> Answer:
    """Run the part --part of the self-test of a deployed cluster, and return the part's result.

    Raise VerifyFailed if the cloud refuses, and SettingsInvalid.
    """
    verifier = program.open_verifier(options.team, _given_config(program, options))
    return dict(run_part(verifier, options.part, options.instance, options.role, options.provider))


def _destroy(program: StackProgram, options: argparse.Namespace) -> Answer:
    """Drain the cluster, delete the stack and return the remaining resources in all clouds.

    The answer has `instances`, `templates`, `leftovers` and `remote_leftovers`. Raise DrainFailed
    if the drain fails or the stack is protected, DeployFailed without an engine or a stack,
    CommandError if the engine fails, and SettingsInvalid.
    """
    engine.require_engine()
    stack = engine.open_stack(program, options.team, is_new=False)
    answer = _drain(program, options)
    engine.remove_stack(stack, options.team, _print_progress)
    config = _given_config(program, options)
    left = program.find_leftovers(options.team, config)
    elsewhere = program.find_remote_leftovers(options.team, config)
    return {**answer, "leftovers": left, "remote_leftovers": elsewhere}


def _export(program: StackProgram, options: argparse.Namespace) -> Answer:
    """Write the stack as Terraform's JSON, with the archives of functions, into --output.

    Build missing archives, and write ADMIN into the settings file. Return `files`, the names of the
    written files, `admin_sha256` and empty `outputs`. Nothing is deployed, and no cloud is called.
    Raise SettingsInvalid, DeployFailed, RunError, NoCounterpart and OSError.
    """
    with complete_folder(options.output) as folder:
        config = _stack_config(program, options, folder, _given_config(program, options))
        run = program.run_export or program.run
        export(run, program.terraform, options.team, config, folder)
        _write_admin_digest(options)
    keys = [f"{PROJECT}:{name}" for name in program.archives.kinds]
    archives = [Path(config[key]).name for key in keys if key in config]
    return _answer(config, {}) | {"files": [FILE, *archives]}


def _answer(config: Mapping[str, str], outputs: Mapping[str, object]) -> Answer:
    """Return the answer of a deployment or an export: `admin_sha256` and `outputs`."""
    return {"admin_sha256": config[ADMIN], "outputs": dict(outputs)}


def _print_progress(line: str) -> None:
    """Print a line to stderr at once."""
    print(line, file=sys.stderr, flush=True)


def _stack_config(
    program: StackProgram, options: argparse.Namespace, folder: Path, given: Mapping[str, str]
) -> dict[str, str]:
    """Return a copy of the configuration `given` with the paths of the functions' archives.

    Print the configuration's warnings. Build the archives that the configuration does not name in
    `folder`, and print a line for each. If the stack needs no archives, return the configuration
    without archives.

    Raises:
        SettingsInvalid: the configuration is invalid.
    """
    config = dict(given)
    archives = {f"{PROJECT}:{name}": kind for name, kind in program.archives.kinds.items()}
    missing = {key: kind for key, kind in archives.items() if key not in config}
    # Building an archive takes half a minute, so check everything else first. This file stands in
    # for the missing archives.
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
    """Return the configuration of the settings file, with absolute paths and ADMIN set.

    A missing ADMIN becomes the option --admin-sha256. Relative paths belong to the folder of the
    settings file. Raise SettingsInvalid for an invalid file, and OSError for an unreadable one.
    """
    config = _read_config(options.settings)
    for name in (CLUSTER_CONFIG, *program.archives.kinds):
        key = f"{PROJECT}:{name}"
        if key in config:
            config[key] = str(options.settings.absolute().parent / config[key])
    config.setdefault(ADMIN, options.admin_sha256)
    return config


def _read_config(file: Path) -> dict[str, str]:
    """Return the map `config` of a settings file in Pulumi's form: texts, or JSON otherwise.

    Raise SettingsInvalid if the file is not valid YAML or has no map `config`, and OSError if the
    file cannot be read.
    """
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
    """Add the administrator's digest ADMIN to the settings file, if missing.

    All deployers share the file. A deployment with another digest would replace the first
    administrator. Raise DeployFailed if the file has no plain line `config:` to insert after, and
    OSError.
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


HOWS: Final[Mapping[str, Callable[[StackProgram, argparse.Namespace], Answer]]] = {
    "deploy": _deploy,
    "preview": _preview,
    "check": _check,
    "policy": _policy,
    "trust": _trust,
    "drain": _drain,
    "restore": _restore,
    "objects": _restore_objects,
    "rollback": _rollback,
    "prune": _prune,
    "destroy": _destroy,
    "verify": _verify,
    "export": _export,
}


if __name__ == "__main__":
    sys.exit(main())
