"""Routes by which an agent lists and offers archives of installed packages.

The archives belong to the experiment of an allocation that the agent currently runs.
"""

from typing import Annotated

from fastapi import Query
from pydantic import Field

from control_plane.access.principals import Role
from control_plane.agents.running_trial import read_running_trial
from control_plane.api.agent_requests import AllocationName
from control_plane.api.dependencies import ServicesParameter
from control_plane.api.request_body import RequestBody
from control_plane.api.route_guards import Caller, guarded_router, require_role
from control_plane.api.routes.agents import AgentId, check_own
from control_plane.api.routes.model_code import Upload
from control_plane.objects.package_archives import Kind, PackageArchive
from control_plane.objects.store import SHA256_PATTERN
from control_plane.queries.answer import Answer
from control_plane.services import Services
from control_plane.usecases.package_archives import list_signed, sign_upload

router = guarded_router("agents")

_Digest = Annotated[str, Field(pattern=SHA256_PATTERN)]


class ArchiveOffer(RequestBody):
    """An archive of a layer of packages, which an agent offers to upload."""

    allocation: AllocationName
    kind: Kind
    key: _Digest
    """The key of the layer, a SHA-256."""
    size: Annotated[int, Field(ge=1, le=2**53)]
    """The size of the archive in bytes."""
    sha256: _Digest
    """The SHA-256 of the archive."""


class ArchiveOfferAnswer(Answer):
    """The answer to an offer. `upload` is the request that uploads a wanted archive.

    If `upload` is null, `reason` is the limit that the archive would exceed. The reason is "" if an
    archive of the layer is already stored.
    """

    upload: Upload | None = None
    reason: str = ""


class StoredPackageArchive(Answer):
    """A stored archive of a layer of packages.

    `url` downloads the archive until `expires_ms` (epoch ms), and may be a path of this API.
    """

    kind: str
    key: str
    size: int
    sha256: str
    url: str
    expires_ms: int


class PackageArchiveList(Answer):
    """The archives of packages of an experiment."""

    archives: list[StoredPackageArchive]


@router.get("/agents/{agent_id}/package-archives")
@require_role(Role.AGENT)
def list_package_archives(
    agent_id: AgentId,
    allocation: Annotated[AllocationName, Query()],
    caller: Caller,
    services: ServicesParameter,
) -> PackageArchiveList:
    check_own(agent_id, caller)
    experiment_id = _running_experiment(services, agent_id, allocation)
    return PackageArchiveList(
        archives=[
            StoredPackageArchive(
                kind=one.kind,
                key=one.key,
                size=one.size,
                sha256=one.sha256,
                url=signed.url,
                expires_ms=signed.expires_ms,
            )
            for one, signed in list_signed(services, experiment_id)
        ]
    )


@router.post("/agents/{agent_id}/package-archives")
@require_role(Role.AGENT)
def offer_package_archive(
    agent_id: AgentId, offer: ArchiveOffer, caller: Caller, services: ServicesParameter
) -> ArchiveOfferAnswer:
    check_own(agent_id, caller)
    experiment_id = _running_experiment(services, agent_id, offer.allocation)
    archive = PackageArchive(experiment_id, offer.kind, offer.key, offer.sha256, offer.size)
    signed, reason = sign_upload(services, archive)
    if signed is None:
        return ArchiveOfferAnswer(reason=reason)
    upload = Upload(
        method=signed.method,
        path=signed.url,
        headers=dict(signed.headers),
        expires_ms=signed.expires_ms,
    )
    return ArchiveOfferAnswer(upload=upload)


def _running_experiment(services: Services, agent_id: str, allocation: str) -> int:
    running = read_running_trial(services.engine, services.experiments, agent_id, allocation)
    return running.experiment.experiment_id
