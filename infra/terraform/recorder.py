"""Runs a Pulumi program without Pulumi's engine.

Each resource is passed to a ResourceMaker, and the program continues with the returned outputs. The
program itself is unchanged: settings and deferred outputs work as usual.
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
    """A resource that a program registers."""

    type: str
    """Pulumi's type, like `aws:sqs/queue:Queue`."""
    name: str
    """Pulumi's name, unique among resources of the type."""
    inputs: Mapping[str, Any]
    """The inputs by Pulumi's names, with known values only."""
    after: tuple[tuple[str, str], ...] = ()
    """The (type, name) of each explicit dependency without a used output."""
    ignored: tuple[str, ...] = ()
    """The inputs, by Pulumi's names, that keep the value of the first deployment."""


class ResourceMaker(Protocol):
    """The receiver of a program's resources, which creates or records each resource."""

    def make(self, resource: Resource) -> tuple[str, Mapping[str, Any]]:
        """Make the resource; return the id, and the outputs in addition to the inputs.

        An error ends the program.
        """
        ...


def is_provider(resource: Resource) -> bool:
    """Return whether a resource is a Pulumi provider."""
    return resource.type.startswith(_PROVIDER_TYPE)


def run_program(
    program: Callable[[], None], stack: str, config: Mapping[str, str], maker: ResourceMaker
) -> dict[str, Any]:
    """Run a program and return the exported values by name.

    `stack` is the stack's name, and `config` maps names like `detcloud:region` to texts. `maker`
    receives the resources one at a time, in a worker thread. Raise whatever the program or the
    maker raises, and ValueError if the program queries a cloud.
    """
    # Pulumi keeps state in context variables, which the next program must not find.
    return contextvars.copy_context().run(_run, program, stack, dict(config), maker)


def _run(
    program: Callable[[], None], stack: str, config: dict[str, str], maker: ResourceMaker
) -> dict[str, Any]:
    """Run a program, and return the exported values by name. Replace Pulumi's state in the context.

    A new event loop and a worker thread are used, and closed at the end. Raise the errors of the
    program and of `maker`, and ValueError if the program queries a cloud.
    """
    loop = asyncio.new_event_loop()
    worker_loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    # The program's failure is raised; the loop's reports about failed outputs are redundant.
    loop.set_exception_handler(lambda loop, context: None)
    # A single thread registers the resources; Pulumi expects an event loop in this thread.
    worker = ThreadPoolExecutor(1, initializer=asyncio.set_event_loop, initargs=(worker_loop,))
    loop.set_default_executor(worker)
    try:
        mocked = _MakerMocks(maker)
        monitor = _RecordingMonitor(mocked)
        set_mocks(mocked, project="detcloud", stack=stack, preview=False, monitor=monitor)
        # An earlier failed program leaves pending calls in Pulumi's global objects.
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
    """Cancel all pending tasks of the loop, and run the loop until the tasks have ended.

    Pending tasks are for example outputs of failed resources. Repeat for tasks that cancelled tasks
    start, at most _ROUNDS_MAX times. Errors of tasks are ignored. Without the cancellation, Python
    would print a warning for each coroutine that was never awaited.
    """
    # A cancelled task may start another task, so repeat.
    for _ in range(_ROUNDS_MAX):
        tasks = asyncio.all_tasks(loop)
        if not tasks:
            return
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))


async def _run_and_read_outputs(program: Callable[[], None]) -> dict[str, Any]:
    """Run a program, and return the exported values by name, without Pulumi's wrappers.

    Raise whatever the program or a resource raises.
    """
    await run_pulumi_func(program)
    root = get_root_resource()
    assert isinstance(root, pulumi.runtime.stack.Stack)
    return {
        name: await pulumi.Output.from_input(value).future() for name, value in root.outputs.items()
    }


class _MakerMocks(mocks.Mocks):
    """Mocks of Pulumi's engine that pass registered resources to the maker.

    `after` holds the dependencies of the next resource, and `ignored` its inputs whose changes are
    ignored.
    """

    def __init__(self, maker: ResourceMaker) -> None:
        self._maker = maker
        self.after: tuple[tuple[str, str], ...] = ()
        self.ignored: tuple[str, ...] = ()

    def call(self, args: mocks.MockCallArgs) -> Any:
        """Raise ValueError: an export cannot query a cloud."""
        raise ValueError(f"{args.token} queries a cloud, which is not possible in an export")

    def new_resource(self, args: mocks.MockResourceArgs) -> tuple[str | None, dict[Any, Any]]:
        """Pass a resource to the maker; return the id, and the inputs with the maker's outputs.

        Pulumi calls this method for each resource. A component, which no cloud knows, is not passed
        on and has neither id nor outputs.
        """
        inputs = _restore_values(args.inputs)
        if not args.custom:
            return None, {}
        made = Resource(args.typ, args.name, inputs, self.after, self.ignored)
        resource_id, outputs = self._maker.make(made)
        return resource_id, {**inputs, **outputs}


class _RecordingMonitor(mocks.MockMonitor):
    """A monitor that passes the explicit dependencies of each resource to the mocks."""

    def __init__(self, mocked: _MakerMocks) -> None:
        super().__init__(mocked)
        self._mocks = mocked

    def RegisterResource(self, request: Any) -> Any:
        """Set `after` of the mocks to the resource's dependencies without a used output.

        Set `ignored` to the inputs whose changes are ignored.
        Pulumi calls this method for each resource. Return the answer of the base class.
        """
        used = {urn for found in request.propertyDependencies.values() for urn in found.urns}
        after = sorted(urn for urn in request.dependencies if urn not in used)
        self._mocks.after = tuple(map(_identity, after))
        self._mocks.ignored = tuple(request.ignoreChanges)
        return super().RegisterResource(request)  # type: ignore[no-untyped-call]


def _identity(urn: str) -> tuple[str, str]:
    """Return (type, name) of a URN `urn:pulumi:STACK::PROJECT::PARENT$TYPE::NAME`."""
    _, _, qualified, name = urn.split("::")
    return qualified.rpartition("$")[2], name


def _restore_values(value: Any) -> Any:
    """Return a copy of a value in the form from before Pulumi's serialization.

    Whole floats become integers, because the serialization has only floats. Secrets are unwrapped.
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
