"""Calls of Pulumi's engine, a separately installed program that deploys and removes stacks."""

import shutil
from collections.abc import Callable, Mapping
from typing import Any

from pulumi import automation

from infra.stack_program import PROJECT, Progress, StackProgram

NO_ENGINE = (
    "Pulumi's engine is not installed; https://www.pulumi.com/docs/install says how. "
    "`detcloud deploy export` writes the same stack for Terraform instead"
)
# The engine's steps that do not interest users, for example unchanged resources.
_QUIET = frozenset({"same", "read", "refresh", "discard", "delete-replaced", "create-replacement"})


class DeployFailed(Exception):
    """A deployment is impossible; the message is for users."""


def require_engine() -> None:
    """Raise DeployFailed if Pulumi's engine is not on the PATH."""
    if shutil.which("pulumi") is None:
        raise DeployFailed(NO_ENGINE)


def open_stack(program: StackProgram, team: str, *, is_new: bool = True) -> automation.Stack:
    """Return the stack of a team in Pulumi's state.

    If the stack does not exist, create the stack (without resources) if `is_new`; otherwise raise
    DeployFailed. Raise CommandError if the engine fails.
    """
    if is_new:
        return automation.create_or_select_stack(team, PROJECT, program.run)
    try:
        return automation.select_stack(team, PROJECT, program.run)
    except automation.StackNotFoundError:
        raise DeployFailed(
            f"Pulumi's state, which `pulumi login` chose, has no stack {team}: deploy the stack "
            "first"
        ) from None


def configure(stack: automation.Stack, config: Mapping[str, str]) -> None:
    """Store `config` as the stack's configuration in Pulumi; names include the project.

    Earlier values of other names stay. Raise CommandError if the engine fails.
    """
    stack.set_all_config({name: automation.ConfigValue(text) for name, text in config.items()})


def read_output(stack: automation.Stack, name: str) -> str:
    """Return an output of the stack's last deployment as text, or "" if missing.

    Raise CommandError if the engine fails.
    """
    found = stack.outputs().get(name)
    return str(found.value) if found else ""


def is_deployed(stack: automation.Stack) -> bool:
    """Return whether the stack has outputs of an earlier deployment.

    Raise CommandError if the engine fails.
    """
    return bool(stack.outputs())


def make_stack(
    stack: automation.Stack, progress: Progress, *, refresh: bool = False
) -> dict[str, Any]:
    """Deploy the stack: create, change and delete resources. Return the outputs by name.

    With `refresh`, first read all resources from the cloud. Pass the engine's output to `progress`,
    line by line. Raise CommandError if the engine fails.
    """
    outputs = stack.up(on_output=progress, color="never", refresh=refresh).outputs
    return {name: output.value for name, output in outputs.items()}


def find_changes(
    program: StackProgram, stack: automation.Stack, progress: Progress, *, refresh: bool = False
) -> list[dict[str, Any]]:
    """Return the change that a deployment would make to each resource, sorted by URN.

    With `refresh`, compare with the cloud instead of Pulumi's state. Change nothing. A change has
    the keys `change`, `type`, `name`, `properties` (the names of changed properties) and
    `loses_content`. Raise CommandError if the engine fails.
    """
    found: dict[str, dict[str, Any]] = {}
    read_change = _change_reader(program.stores, found)
    stack.preview(on_output=progress, on_event=read_change, color="never", refresh=refresh)
    return [found[urn] for urn in sorted(found)]


def count_changes(
    stack: automation.Stack, progress: Progress, *, refresh: bool = False
) -> dict[str, int]:
    """Return the number of resources that a deployment would treat by each operation.

    The keys are Pulumi's operations, such as `create`, `update` and `same`. With `refresh`, compare
    with the cloud instead of Pulumi's state. Change nothing. Raise CommandError if the engine
    fails.
    """
    changes = stack.preview(on_output=progress, color="never", refresh=refresh).change_summary
    return {str(getattr(op, "value", op)): n for op, n in changes.items()}


def remove_stack(stack: automation.Stack, team: str, progress: Progress) -> None:
    """Delete all resources of the stack, and then the stack in Pulumi's state.

    `team` is the stack's name. Raise CommandError if the engine fails; the stack then stays.
    """
    stack.destroy(on_output=progress, color="never")
    stack.workspace.remove_stack(team)


def _change_reader(
    stores: frozenset[str], found: dict[str, dict[str, Any]]
) -> Callable[[automation.EngineEvent], None]:
    """Return an event handler that stores each resource's change in `found`, by URN.

    Skip the steps of _QUIET and resources of the types `pulumi:` and `detcloud:`. Replacing or
    deleting a type of `stores` loses content.
    """

    def record_change(event: automation.EngineEvent) -> None:
        step = event.resource_pre_event and event.resource_pre_event.metadata
        if not step or step.type.startswith(("pulumi:", "detcloud:")):
            return
        change = str(getattr(step.op, "value", step.op))
        if change in _QUIET:
            return
        found[step.urn] = {
            "change": change,
            "type": step.type,
            "name": step.urn.rpartition("::")[2],
            "properties": sorted(step.diffs or ()),
            "loses_content": step.type in stores and change in ("replace", "delete"),
        }

    return record_change
