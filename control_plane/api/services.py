"""What the handlers work with: one record, filled by the composition root of a process."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request

from control_plane.agents.identity import Witness
from control_plane.agents.service import AgentService
from control_plane.agents.spec import Checkpoints
from control_plane.agents.storage_access import Vendor
from control_plane.api.auth import Tokens
from control_plane.api.signing import Signer
from control_plane.api.views.courses import Courses
from control_plane.api.views.ranking import Rankings
from control_plane.api.waiting import WaitingRoom
from control_plane.dispatch.engine import Engine
from control_plane.objects.store import ObjectStore
from control_plane.state.table import StateTable


@dataclass(frozen=True)
class Services:
    """Everything an application needs from outside.

    Attributes:
        tokens: who holds which token.
        objects: where model code and logs lie.
        signer: the keys of our own signed URLs.
        now_ms: the clock, epoch milliseconds.
        hosts: the names a request may address us by, without ports. A browser that was lured to
            another name resolving to our address is refused.
        engine: the actors.
        agents: the agents' side of them.
        cluster_id: the cluster's name for itself.
        version: what runs here.
        checkpoints: where checkpoints go whose configuration names no place.
        waiting: where calls are held, on a host where waiting is cheap.
        courses: the metrics looked at last.
        rankings: the best trials of the experiments looked at last.
        providers: where instances can come from; `provider.type` of a pool's configuration.
        vendor: who gives out keys for the storage of trials; None where they bring their own.
        suggests: whether another process asks searches' models; else this one must be able to.
        witness: who says which instance signed a proof of its identity; None where none does.
    """

    tokens: Tokens
    objects: ObjectStore
    signer: Signer
    now_ms: Callable[[], int]
    hosts: frozenset[str]
    engine: Engine
    agents: AgentService
    cluster_id: str
    version: str
    checkpoints: Checkpoints
    waiting: WaitingRoom | None = None
    courses: Courses = field(default_factory=Courses)
    rankings: Rankings = field(default_factory=Rankings)
    providers: frozenset[str] = frozenset()
    suggests: bool = False
    witness: Witness | None = None
    vendor: Vendor | None = None

    @property
    def table(self) -> StateTable:
        return self.engine.table


def services_of(request: Request) -> Services:
    services = request.app.state.services
    assert isinstance(services, Services)
    return services


Given = Annotated[Services, Depends(services_of)]
"""The type of a handler's parameter that receives the services."""
