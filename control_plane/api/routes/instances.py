"""Instances of a cloud: who they are."""

from typing import Annotated

from fastapi import Path
from pydantic import Field

from control_plane.agents.identity import Proof, ProofRefused, identified
from control_plane.api.auth import Principal, Role
from control_plane.api.bodies import Body, RequestBody
from control_plane.api.errors import ApiError, Code
from control_plane.api.guarded import guarded_router, open_to_all
from control_plane.api.services import Given
from control_plane.api.token_table import put_token

router = guarded_router("instances")

InstanceId = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,62}$")]
# What may stand in a header: nothing that ends one.
HeaderText = Annotated[str, Field(pattern=r"^[\x20-\x7e]+$", max_length=4096)]


class IdentityProof(RequestBody):
    """The body: see docs/agent-protocol.md."""

    resource_pool: Annotated[str, Field(min_length=1, max_length=100)]
    token_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    authorization: HeaderText
    date: Annotated[str, Field(pattern=r"^\d{8}T\d{6}Z$")]
    security_token: HeaderText


class Identified(Body):
    """The token whose digest was proved lets the instance join `resource_pool` from now on."""

    instance_id: str
    resource_pool: str


@router.put("/instances/{instance_id}/identity")
@open_to_all
def prove(instance_id: InstanceId, asked: IdentityProof, services: Given) -> Identified:
    """The proof in the body stands for a token: nobody has one before."""
    if services.witness is None:
        raise ApiError(Code.NOT_FOUND, "this cluster has no instances that prove who they are")
    proof = Proof(asked.token_sha256, asked.authorization, asked.date, asked.security_token)
    try:
        signer = services.witness.instance_of(proof)
    except ProofRefused as refused:
        raise ApiError(Code.FORBIDDEN, str(refused)) from None
    except OSError as error:
        raise ApiError(Code.UNAVAILABLE, f"AWS does not answer: {error}") from None
    if signer != instance_id:
        raise ApiError(Code.FORBIDDEN, f"the signature is not one of {instance_id}")
    pool = asked.resource_pool
    holder = Principal(f"instance {instance_id}", Role.JOIN, pool, agent=instance_id)
    token = put_token(asked.token_sha256, holder)
    identified(services.table, instance_id, pool, proof, token, services.now_ms())
    return Identified(instance_id=instance_id, resource_pool=pool)
