"""The routes where an instance of a cloud proves its identity, is given the code of its agent where
that is in another cloud, and tells why its boot failed.
"""

import hashlib
from typing import Annotated

from fastapi import Path, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from control_plane.access.principals import Principal, Role
from control_plane.access.tokens import token_put
from control_plane.agents.agent_code import agent_code_key
from control_plane.agents.identity import (
    InvalidProof,
    Proof,
    is_booting_instance,
    register_instance_token,
)
from control_plane.api.dependencies import ServicesParameter
from control_plane.api.request_body import RequestBody
from control_plane.api.responses import download_or_redirect
from control_plane.api.route_guards import allow_anyone, guarded_router
from control_plane.errors import Code, RequestError
from control_plane.fleet.notices import InstanceNotice, record_notice
from control_plane.fleet.rows import launched_provider_type
from control_plane.objects.store import SHA256_PATTERN
from control_plane.queries.answer import Answer
from control_plane.services import Services
from control_plane.text_forms import PRINTABLE_TEXT, text_form
from detcloud.shared.boot_log import BOOT_LOG_CHARACTERS_MAX, clean_boot_log
from detcloud.shared.identity_purposes import AGENT_CODE, BOOT_REPORT

router = guarded_router("instances")

INSTANCE_ID = text_form(
    r"^[A-Za-z0-9][A-Za-z0-9-]{0,62}$",
    "the id of an instance: at most 63 letters, digits and -, of which the first is no -",
)
InstanceId = Annotated[str, Path(pattern=INSTANCE_ID)]
# What a proof may have, whatever its cloud: texts of printable ASCII, as signatures and tokens are.
ProofText = Annotated[str, Field(pattern=PRINTABLE_TEXT, max_length=4096)]
FIELDS_MAX = 16


class CloudProof(RequestBody):
    """The signed part of a body. Its other fields are those of the instance's cloud, which
    docs/agent-protocol.md has.
    """

    model_config = ConfigDict(extra="allow", json_schema_extra={"maxProperties": FIELDS_MAX})
    __pydantic_extra__: dict[str, ProofText]

    resource_pool: Annotated[str, Field(min_length=1, max_length=100)]

    @model_validator(mode="before")
    @classmethod
    def _check_number_of_fields(cls, body: object) -> object:
        """Refuse a body of too many fields whole: each of them would be a line of the answer."""
        if isinstance(body, dict) and len(body) > FIELDS_MAX:
            text = "must have at most {most} fields"
            raise PydanticCustomError("too_many_fields", text, {"most": FIELDS_MAX})
        return body


class IdentityProof(CloudProof):
    """The proof that an instance made a join token."""

    token_sha256: Annotated[str, Field(pattern=SHA256_PATTERN)]


class BootReport(CloudProof):
    """The last lines of a boot that failed, with a proof that covers their digest."""

    report: Annotated[str, Field(min_length=1, max_length=BOOT_LOG_CHARACTERS_MAX)]


class CodeRequest(CloudProof):
    """A request for the agent's code, with a proof that covers its digest."""

    sha256: Annotated[str, Field(pattern=SHA256_PATTERN)]


class BootReportAnswer(Answer):
    """The instance whose report was taken."""

    instance_id: str


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
    proof = Proof(body.token_sha256, body.model_extra or {})
    pool = body.resource_pool
    _check_signer(services, instance_id, pool, proof)
    holder = Principal(f"instance {instance_id}", Role.JOIN, pool, agent=instance_id)
    token = token_put(body.token_sha256, holder)
    register_instance_token(services.table, instance_id, pool, proof, token, services.now_ms())
    return IdentityAnswer(instance_id=instance_id, resource_pool=pool)


@router.put("/instances/{instance_id}/boot-report")
@allow_anyone
def report_boot(
    instance_id: InstanceId, body: BootReport, services: ServicesParameter
) -> BootReportAnswer:
    """Tell why an instance's boot failed. The signature covers the report's digest, for this
    purpose alone: it lets nobody in. The first report counts, of an instance without an agent.
    """
    digest = hashlib.sha256(body.report.encode()).hexdigest()
    proof = Proof(digest, body.model_extra or {}, BOOT_REPORT)
    _check_booting(services, instance_id, body.resource_pool, proof)
    # Lines of nothing but what is masked or left out are a report all the same.
    report = clean_boot_log(body.report) or "it wrote nothing"
    notice = InstanceNotice(instance_id, boot_report=report)
    record_notice(services.table, notice, services.now_ms())
    return BootReportAnswer(instance_id=instance_id)


@router.post("/instances/{instance_id}/agent-code")
@allow_anyone
def get_code(instance_id: InstanceId, body: CodeRequest, services: ServicesParameter) -> Response:
    """Redirect an instance that boots to the code of its agent, under a signature that is good for
    a few minutes. The proof covers the code's digest, for this purpose alone: it lets nobody in.
    """
    proof = Proof(body.sha256, body.model_extra or {}, AGENT_CODE)
    _check_booting(services, instance_id, body.resource_pool, proof)
    key, now_ms = agent_code_key(body.sha256), services.now_ms()
    return download_or_redirect(services.objects, key, "application/gzip", now_ms, 303)


def _check_booting(services: Services, instance_id: str, pool: str, proof: Proof) -> None:
    """Check that the proof is one of the instance, which the pool has and whose agent has not
    connected yet.
    """
    _check_signer(services, instance_id, pool, proof)
    if not is_booting_instance(services.table, pool, instance_id):
        text = f"pool {pool} has no instance {instance_id} that is booting"
        raise RequestError(Code.NOT_FOUND, text)


def _check_signer(services: Services, instance_id: str, pool: str, proof: Proof) -> None:
    """Check that the proof is one of the instance, by the cloud that the cluster launches the
    pool's instances in: the proof itself cannot choose the cloud that verifies it.
    """
    verifier = services.find_verifier(launched_provider_type(services.table, pool))
    if verifier is None:
        text = f"pool {pool} has no instances that prove their identity"
        raise RequestError(Code.NOT_FOUND, text)
    try:
        signer = verifier.verify_proof(proof)
    except ValidationError as error:
        raise _body_error(error) from None
    except InvalidProof as refused:
        raise RequestError(Code.FORBIDDEN, str(refused)) from None
    except OSError as error:
        text = f"{verifier.cloud} does not answer: {error}"
        raise RequestError(Code.UNAVAILABLE, text) from None
    if signer != instance_id:
        raise RequestError(Code.FORBIDDEN, f"the signature is not from {instance_id}")


def _body_error(error: ValidationError) -> RequestValidationError:
    """The error of a body that has these faults: the cloud's fields are on its top level."""
    faults = error.errors(include_url=False, include_input=False)
    return RequestValidationError([{**fault, "loc": ("body", *fault["loc"])} for fault in faults])
