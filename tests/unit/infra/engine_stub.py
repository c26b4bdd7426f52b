"""A stand-in for Pulumi's engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace

from pulumi import automation


class Engine:
    """A stand-in for Pulumi's engine that records stacks, settings and operations."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.config: dict[str, str] = {}
        self.deployed: dict[str, str] = {}
        self.error: Exception | None = None
        self.is_there = True
        self.events: list[automation.EngineEvent] = []
        self.workspace = self
        # Pulumi's name of the method.
        self.up = self.deploy_stack

    def select_stack(self, stack_name: str, project_name: str, program: object) -> Engine:
        self.asked.append(f"{project_name}/{stack_name}")
        return self

    def find_stack(self, stack_name: str, project_name: str, program: object) -> Engine:
        if not self.is_there:
            raise automation.StackNotFoundError(automation.CommandResult("", "", 255))
        return self.select_stack(stack_name, project_name, program)

    def destroy(self, *, on_output: Callable[[str], None], color: str) -> None:
        self.asked.append("destroy")

    def remove_stack(self, stack_name: str) -> None:
        self.asked.append(f"forget {stack_name}")

    def outputs(self) -> dict[str, automation.OutputValue]:
        return {name: automation.OutputValue(text, False) for name, text in self.deployed.items()}

    def set_all_config(self, config: Mapping[str, automation.ConfigValue]) -> None:
        self.config = {name: value.value for name, value in config.items()}

    def preview(
        self,
        *,
        on_output: Callable[[str], None],
        color: str,
        refresh: bool,
        on_event: Callable[[automation.EngineEvent], None] = lambda event: None,
    ) -> SimpleNamespace:
        self.asked.append("preview with refresh" if refresh else "preview")
        for event in self.events:
            on_event(event)
        return SimpleNamespace(change_summary={automation.OpType.CREATE: 79})

    def deploy_stack(
        self, *, on_output: Callable[[str], None], color: str, refresh: bool
    ) -> SimpleNamespace:
        self.asked.append("up with refresh" if refresh else "up")
        if self.error is not None:
            raise self.error
        on_output("creating")
        return SimpleNamespace(outputs={"url": automation.OutputValue("https://x", False)})
