"""Running a Pulumi program without Pulumi's engine: each resource is passed to a `ResourceMaker`,
and the program continues with the outputs that it returns.

The program itself is unchanged: it reads its settings and uses outputs that are resolved later.
"""

import asyncio
import contextvars
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

import pulumi
from pulumi.runtime import mocks, rpc, set_all_config, set_mocks
from pulumi.runtime.settings import SETTINGS, get_root_resource
from pulumi.runtime.stack import run_pulumi_func

_PROVIDER_TYPE = "pulumi:providers:"
_ROUNDS_MAX = 10


@dataclass(frozen=True)
class Resource:
    """A resource that a program registers: `type` like `aws:sqs/queue:Queue`, a `name` that is
    unique among those of the type, and the resources, by (type, name), that it comes after without
    using them.
    """

    type: str
    name: str
    inputs: Mapping[str, Any]
    after: tuple[tuple[str, str], ...] = ()


class ResourceMaker(Protocol):
    """A maker of a program's resources, or of substitutes for them."""

    def make(self, resource: Resource) -> tuple[str, Mapping[str, Any]]:
        """Make a resource; returns its id, and the outputs that it has besides its inputs."""
        ...


def is_provider(resource: Resource) -> bool:
    """Whether a resource is the provider of the others, which is made of settings alone."""
    return resource.type.startswith(_PROVIDER_TYPE)


def run_program(
    program: Callable[[], None], stack: str, config: Mapping[str, str], maker: ResourceMaker
) -> dict[str, Any]:
    """Run a program and return its exported values. `config` has names as in `detcloud:region`.

    Raises whatever the program or the maker raise.
    """
    # Pulumi's state is of a context; the next program shall find none.
    return contextvars.copy_context().run(_run, program, stack, dict(config), maker)


def _run(
    program: Callable[[], None], stack: str, config: dict[str, str], maker: ResourceMaker
) -> dict[str, Any]:
    loop = asyncio.new_event_loop()
    worker_loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    # What failed is raised; that its outputs failed with it is no news.
    loop.set_exception_handler(lambda loop, context: None)
    # Resources are registered one at a time, in a thread that Pulumi expects to have a loop.
    worker = ThreadPoolExecutor(1, initializer=asyncio.set_event_loop, initargs=(worker_loop,))
    loop.set_default_executor(worker)
    try:
        mocked = _MakerMocks(maker)
        monitor = _RecordingMonitor(mocked)
        set_mocks(mocked, project="detcloud", stack=stack, preview=False, monitor=monitor)
        # A program that failed leaves calls behind that nobody waits for any more.
        SETTINGS.rpc_manager.clear()
        SETTINGS.outputs.clear()
        set_all_config(config)
        return loop.run_until_complete(_run_and_read_outputs(program))
    finally:
        worker.shutdown()
        _end_tasks(loop)
        asyncio.set_event_loop(None)
        worker_loop.close()
        loop.close()


def _end_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """End what a program has begun and nobody waits for, such as the outputs of what failed: Python
    warns of each coroutine that was never awaited, whenever it collects it.
    """
    # What is canceled may begin something else once.
    for _ in range(_ROUNDS_MAX):
        tasks = asyncio.all_tasks(loop)
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))


async def _run_and_read_outputs(program: Callable[[], None]) -> dict[str, Any]:
    await run_pulumi_func(program)
    root = get_root_resource()
    assert isinstance(root, pulumi.runtime.stack.Stack)
    return {
        name: await pulumi.Output.from_input(value).future() for name, value in root.outputs.items()
    }


class _MakerMocks(mocks.Mocks):
    """Hands what the program registers to the maker."""

    def __init__(self, maker: ResourceMaker) -> None:
        self._maker = maker
        self.after: tuple[tuple[str, str], ...] = ()

    def call(self, args: mocks.MockCallArgs) -> Any:
        raise ValueError(f"{args.token} queries a cloud, which is not possible in an export")

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str | None, dict[Any, Any]]:
        inputs = _restore_values(args.inputs)
        if not args.custom:
            return None, {}
        resource_id, outputs = self._maker.make(Resource(args.typ, args.name, inputs, self.after))
        return resource_id, {**inputs, **outputs}


class _RecordingMonitor(mocks.MockMonitor):
    """Tells the mocks what each resource comes after."""

    def __init__(self, mocked: _MakerMocks) -> None:
        super().__init__(mocked)
        self._mocks = mocked

    def RegisterResource(self, request: Any) -> Any:
        used = {urn for found in request.propertyDependencies.values() for urn in found.urns}
        after = sorted(urn for urn in request.dependencies if urn not in used)
        self._mocks.after = tuple(map(_identity, after))
        return super().RegisterResource(request)  # type: ignore[no-untyped-call]


def _identity(urn: str) -> tuple[str, str]:
    """Return (type, name) of `urn:pulumi:STACK::PROJECT::PARENT$TYPE::NAME`."""
    _, _, qualified, name = urn.split("::")
    return qualified.rpartition("$")[2], name


def _restore_values(value: Any) -> Any:
    """Return a value as it was before it was sent, where all numbers are floats, and what a
    provider's package takes for a secret is wrapped.
    """
    if rpc.is_rpc_secret(value):
        return _restore_values(rpc.unwrap_rpc_secret(value))
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _restore_values(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_restore_values(item) for item in value]
    return value
