"""The calls of the cloud by the child process `infra.deploy`, while a progress line is drawn."""

from __future__ import annotations

import threading
from argparse import Namespace
from collections.abc import Callable, Iterable
from typing import Any, Final, Protocol, TypeVar

from detcloud.cli.commands.deployment_process import run_deployment
from detcloud.cli.framework.deployable_clouds import DeployableCloud
from detcloud.cli.rendering.progress import Progress

T = TypeVar("T")

_DRAWN_EVERY_SECONDS: Final = 0.2
_INTERRUPTED_SECONDS_MAX: Final = 20.0


class CloudCalls(Protocol):
    """Calls of the cloud with the deployer's credentials. They raise DetcloudError."""

    def call(
        self,
        part: str,
        instances: Iterable[str] = (),
        role: str = "",
        providers: Iterable[str] = (),
    ) -> dict[str, Any]:
        """Make the calls of a part of `infra.verification.PARTS`, and return the answer.

        Instances are given as ZONE/ID, and the providers of pools as JSON.
        """
        ...


class ChildCalls:
    """Calls by child processes."""

    def __init__(self, cloud: DeployableCloud, arguments: Namespace) -> None:
        self._cloud = cloud
        self._arguments = arguments

    def call(
        self,
        part: str,
        instances: Iterable[str] = (),
        role: str = "",
        providers: Iterable[str] = (),
    ) -> dict[str, Any]:
        """Run `infra.deploy verify` for a part, and return the answer. Raise DetcloudError."""
        flags = [f"--part={part}", *(f"--instance={name}" for name in instances)]
        flags += [f"--role={role}"] if role else []
        flags += [f"--provider={provider}" for provider in providers]
        _, answer = run_deployment("verify", self._cloud, self._arguments, *flags)
        return answer


def wait_with_progress(work: Callable[[], T], progress: Progress, text: str) -> T:
    """Run `work` in a thread while the progress line shows a text and the seconds.

    Return the result, or raise the error of `work`. After Ctrl-C, wait shortly for the end of
    `work`.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            progress.show_wait(text)
            thread.join(_DRAWN_EVERY_SECONDS)
    except KeyboardInterrupt:
        # The cleanup must find everything that the work still creates.
        thread.join(_INTERRUPTED_SECONDS_MAX)
        raise
    if errors:
        raise errors[0]
    return results[0]
