"""Pulumi's engine, which makes, changes and removes a stack: a program that must be installed."""

import shutil
from collections.abc import Callable, Mapping
from typing import Any

from pulumi import automation

from infra.stack_program import PROJECT, Progress, StackProgram

NO_ENGINE = (
    "Pulumi's engine is not installed; https://www.pulumi.com/docs/install says how. "
    "`detcloud deploy export` writes the same stack for Terraform instead"
)
# What the engine says of a resource to which nothing happens that anybody would ask about.
_QUIET = frozenset({"same", "read", "refresh", "discard", "delete-replaced", "create-replacement"})


class DeployFailed(Exception):
    """The deployment cannot be done; the message is for users."""


def require_engine() -> None:
    """Raise DeployFailed where there is no engine."""
    if shutil.which("pulumi") is None:
        raise DeployFailed(NO_ENGINE)


def open_stack(program: StackProgram, team: str, *, is_new: bool = True) -> automation.Stack:
    """Return the stack of a team, which is made where `is_new`.

    Raises:
        DeployFailed: there is no such stack.
    """
    if is_new:
        return automation.create_or_select_stack(team, PROJECT, program.run)
    try:
        return automation.select_stack(team, PROJECT, program.run)
    except automation.StackNotFoundError:
        raise DeployFailed(
            f"there is no stack {team} in Pulumi's state, where `pulumi login` says it is: "
            "deploy it first"
        ) from None


def configure(stack: automation.Stack, config: Mapping[str, str]) -> None:
    """Give the stack its configuration."""
    stack.set_all_config({name: automation.ConfigValue(text) for name, text in config.items()})


def read_output(stack: automation.Stack, name: str) -> str:
    """Return an output of the stack as it was deployed the last time, "" for none."""
    found = stack.outputs().get(name)
    return str(found.value) if found else ""


def make_stack(stack: automation.Stack, progress: Progress) -> dict[str, Any]:
    """Make what the stack lacks, change what differs, and return its outputs."""
    outputs = stack.up(on_output=progress, color="never").outputs
    return {name: output.value for name, output in outputs.items()}


def find_changes(
    program: StackProgram, stack: automation.Stack, progress: Progress
) -> list[dict[str, Any]]:
    """Return what would be done to each resource that is not as the program has it, and change
    nothing.
    """
    found: dict[str, dict[str, Any]] = {}
    stack.preview(on_output=progress, on_event=_change_reader(program.stores, found), color="never")
    return [found[urn] for urn in sorted(found)]


def count_changes(stack: automation.Stack, progress: Progress) -> dict[str, int]:
    """Return how many resources would be made, changed and so on, and change nothing."""
    changes = stack.preview(on_output=progress, color="never").change_summary
    return {str(getattr(op, "value", op)): n for op, n in changes.items()}


def remove_stack(stack: automation.Stack, team: str, progress: Progress) -> None:
    """Remove all that the stack has, and then what Pulumi knows of it."""
    stack.destroy(on_output=progress, color="never")
    stack.workspace.remove_stack(team)


def _change_reader(
    stores: frozenset[str], found: dict[str, dict[str, Any]]
) -> Callable[[automation.EngineEvent], None]:
    """Return a reader of the engine's events that notes changes in `found`, by their URN."""

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
