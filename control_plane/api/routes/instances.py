"""The route where an instance of a cloud proves its identity."""

from typing import Annotated

from fastapi import Path
from pydantic import Field

from control_plane.access.principals import Principal, Role
from control_plane.access.tokens import token_put
from control_plane.agents.identity import InvalidProof, Proof, register_instance_token
from control_plane.api.dependencies import ServicesParameter
from control_plane.api.request_body import RequestBody
from control_plane.api.route_guards import allow_anyone, guarded_router
from control_plane.errors import Code, RequestError
from control_plane.queries.answer import Answer

router = guarded_router("instances")

InstanceId = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,62}$")]
# The characters that a header may have: none that ends it.
HeaderText = Annotated[str, Field(pattern=r"^[\x20-\x7e]+$", max_length=4096)]


class IdentityProof(RequestBody):
    """The proof that an instance sends; docs/agent-protocol.md has the fields."""

    resource_pool: Annotated[str, Field(min_length=1, max_length=100)]
    token_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    authorization: HeaderText
    date: Annotated[str, Field(pattern=r"^\d{8}T\d{6}Z$")]
    security_token: HeaderText


class IdentityAnswer(Answer):
    """The instance that was identified. The token whose digest was proved lets the instance join
    `resource_pool` from now on.
    """

    instance_id: str
    resource_pool: str


@router.put("/instances/{instance_id}/identity")
@allow_anyone
def prove(
    instance_id: InstanceId, body: IdentityProof, services: ServicesParameter
) -> IdentityAnswer:
    """Prove an instance's identity. The proof stands for a token: the instance has none before."""
    if services.identity_verifier is None:
        raise RequestError(Code.NOT_FOUND, "this cluster has no instances that prove who they are")
    proof = Proof(body.token_sha256, body.authorization, body.date, body.security_token)
    try:
        signer = services.identity_verifier.verify_proof(proof)
    except InvalidProof as refused:
        raise RequestError(Code.FORBIDDEN, str(refused)) from None
    except OSError as error:
        raise RequestError(Code.UNAVAILABLE, f"AWS does not answer: {error}") from None
    if signer != instance_id:
        raise RequestError(Code.FORBIDDEN, f"the signature is not one of {instance_id}")
    pool = body.resource_pool
    holder = Principal(f"instance {instance_id}", Role.JOIN, pool, agent=instance_id)
    token = token_put(body.token_sha256, holder)
    register_instance_token(services.table, instance_id, pool, proof, token, services.now_ms())
    return IdentityAnswer(instance_id=instance_id, resource_pool=pool)
