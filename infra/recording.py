"""Runs a program of Pulumi without Pulumi's engine: each resource goes to a maker of ours, and the
program goes on with what that maker says it has become.

The program is unchanged: it sees its settings, and outputs that are known later.
"""

import asyncio
import contextvars
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import pulumi
from pulumi.runtime import mocks, set_all_config, set_mocks
from pulumi.runtime.settings import SETTINGS, get_root_resource
from pulumi.runtime.stack import run_pulumi_func

PROVIDER = "pulumi:providers:aws"


@dataclass(frozen=True)
class Resource:
    """What a program registers: `type` like `aws:sqs/queue:Queue`, a `name` that is unique among
    those of the type, and the resources, by (type, name), that it comes after without using them.
    """

    type: str
    name: str
    inputs: Mapping[str, Any]
    after: tuple[tuple[str, str], ...] = ()


class Maker(Protocol):
    """What becomes of resources."""

    def make(self, resource: Resource) -> tuple[str, Mapping[str, Any]]:
        """The resource's id, and its outputs beside its inputs."""
        ...


def run_program(
    program: Callable[[], None], stack: str, config: Mapping[str, str], maker: Maker
) -> dict[str, Any]:
    """The program's exported values. `config` has names as in `detcloud:region`.

    Raises whatever the program or the maker raise.
    """
    # Pulumi's state is of a context; the next program shall find none.
    return contextvars.copy_context().run(_run, program, stack, dict(config), maker)


def _run(
    program: Callable[[], None], stack: str, config: dict[str, str], maker: Maker
) -> dict[str, Any]:
    loop = asyncio.new_event_loop()
    beside = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    # What failed is raised; that its outputs failed with it is no news.
    loop.set_exception_handler(lambda loop, context: None)
    # Resources are registered one at a time, in a thread that Pulumi expects to have a loop.
    worker = ThreadPoolExecutor(1, initializer=asyncio.set_event_loop, initargs=(beside,))
    loop.set_default_executor(worker)
    try:
        makes = _Makes(maker)
        set_mocks(makes, project="detcloud", stack=stack, preview=False, monitor=_Monitor(makes))
        # A program that failed leaves calls behind that nobody waits for any more.
        SETTINGS.rpc_manager.clear()
        SETTINGS.outputs.clear()
        set_all_config(config)
        return loop.run_until_complete(_outputs(program))
    finally:
        asyncio.set_event_loop(None)
        worker.shutdown()
        beside.close()
        loop.close()


async def _outputs(program: Callable[[], None]) -> dict[str, Any]:
    await run_pulumi_func(program)
    root = get_root_resource()
    assert isinstance(root, pulumi.runtime.stack.Stack)
    return {
        name: await pulumi.Output.from_input(value).future() for name, value in root.outputs.items()
    }


class _Makes(mocks.Mocks):
    """What the program registers goes to the maker."""

    def __init__(self, maker: Maker) -> None:
        self._maker = maker
        self.after: tuple[tuple[str, str], ...] = ()

    def call(self, args: mocks.MockCallArgs) -> Any:
        raise ValueError(f"{args.token} asks a cloud, and there is none that could be asked")

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str | None, dict[Any, Any]]:
        inputs = _plain(args.inputs)
        if not args.custom:
            return None, {}
        made, outputs = self._maker.make(Resource(args.typ, args.name, inputs, self.after))
        return made, {**inputs, **outputs}


class _Monitor(mocks.MockMonitor):
    """Tells what each resource comes after."""

    def __init__(self, makes: _Makes) -> None:
        super().__init__(makes)
        self._makes = makes

    def RegisterResource(self, request: Any) -> Any:
        used = {urn for found in request.propertyDependencies.values() for urn in found.urns}
        after = sorted(urn for urn in request.dependencies if urn not in used)
        self._makes.after = tuple(map(_identity, after))
        return super().RegisterResource(request)  # type: ignore[no-untyped-call]


def _identity(urn: str) -> tuple[str, str]:
    """(type, name) of `urn:pulumi:STACK::PROJECT::PARENT$TYPE::NAME`."""
    _, _, qualified, name = urn.split("::")
    return qualified.rpartition("$")[2], name


def _plain(value: Any) -> Any:
    """As it was before it was sent, where all numbers are floats."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _plain(it) for key, it in value.items()}
    if isinstance(value, list):
        return [_plain(it) for it in value]
    return value
