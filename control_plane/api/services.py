"""What the handlers work with: one record, filled by the composition root of a process."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from control_plane.api.auth import Tokens
from control_plane.api.signing import Signer
from control_plane.objects.store import ObjectStore


@dataclass(frozen=True)
class Services:
    """Everything an application needs from outside.

    Attributes:
        tokens: who holds which token.
        objects: where model code, logs and checkpoints lie.
        signer: the keys of our own signed URLs.
        now_ms: the clock, epoch milliseconds.
        hosts: the names a request may address us by, without ports. A browser that was lured to
            another name resolving to our address is refused.
    """

    tokens: Tokens
    objects: ObjectStore
    signer: Signer
    now_ms: Callable[[], int]
    hosts: frozenset[str]


def services_of(request: Request) -> Services:
    services = request.app.state.services
    assert isinstance(services, Services)
    return services


Given = Annotated[Services, Depends(services_of)]
"""The type of a handler's parameter that receives the services."""
