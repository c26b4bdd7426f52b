"""Routes of booting instances: prove the identity, report a failed boot, get the agent's code.

Instances in another cloud than the cluster's get the agent's code here.
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
    check_signer,
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
# A field of a proof, in any cloud. Signatures and tokens are texts of printable ASCII.
ProofText = Annotated[str, Field(pattern=PRINTABLE_TEXT, max_length=4096)]
FIELDS_MAX = 16


class CloudProof(RequestBody):
    """The part of a body that proves the instance's identity.

    Further fields depend on the instance's cloud; docs/agent-protocol.md describes them.
    """

    model_config = ConfigDict(extra="allow", json_schema_extra={"maxProperties": FIELDS_MAX})
    __pydantic_extra__: dict[str, ProofText]

    resource_pool: Annotated[str, Field(min_length=1, max_length=100)]

    @model_validator(mode="before")
    @classmethod
    def _check_number_of_fields(cls, body: object) -> object:
        """Return the body, or refuse a body of more than FIELDS_MAX fields with a single problem.

        Otherwise each wrong field would be a problem in the answer.
        """
        if isinstance(body, dict) and len(body) > FIELDS_MAX:
            text = "must have at most {most} fields"
            raise PydanticCustomError("too_many_fields", text, {"most": FIELDS_MAX})
        return body


class IdentityProof(CloudProof):
    """The proof that an instance generated the join token with the digest `token_sha256`."""

    token_sha256: Annotated[str, Field(pattern=SHA256_PATTERN)]


class BootReport(CloudProof):
    """The last lines of a failed boot, with a proof that covers the digest of the report."""

    report: Annotated[str, Field(min_length=1, max_length=BOOT_LOG_CHARACTERS_MAX)]


class CodeRequest(CloudProof):
    """A request for the agent's code, with a proof that covers the digest of the code."""

    sha256: Annotated[str, Field(pattern=SHA256_PATTERN)]


class BootReportAnswer(Answer):
    """The instance that sent the accepted report."""

    instance_id: str


class IdentityAnswer(Answer):
    """The identified instance. The proved token now lets the instance join `resource_pool`."""

    instance_id: str
    resource_pool: str


@router.put("/instances/{instance_id}/identity")
@allow_anyone
def prove(
    instance_id: InstanceId, body: IdentityProof, services: ServicesParameter
) -> IdentityAnswer:
    """Prove an instance's identity, and register the join token that the instance generated.

    The request needs no token: the proof replaces a token. A repeated proof of the same digest
    changes nothing. Errors: `not_found` if the pool has no such active instance, or no instances
    that prove an identity. `invalid` for wrong fields of the proof. `forbidden` if the proof is
    invalid, belongs to another instance, or covers another digest than an earlier proof.
    `unavailable` if the cloud does not answer.
    """
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
    """Report why an instance's boot failed.

    The proof must be signed for this purpose and for the digest of the report. Only the first
    report of an instance is stored, without likely secrets. Errors: `not_found` if the pool has no
    such instance that is booting. `invalid` for wrong fields of the proof. `forbidden` if the proof
    is invalid or belongs to another instance. `unavailable` if the cloud does not answer.
    """
    digest = hashlib.sha256(body.report.encode()).hexdigest()
    proof = Proof(digest, body.model_extra or {}, BOOT_REPORT)
    _check_booting(services, instance_id, body.resource_pool, proof)
    # A report counts even if nothing is left after masking and cleaning.
    report = clean_boot_log(body.report) or "it wrote nothing"
    notice = InstanceNotice(instance_id, boot_report=report)
    record_notice(services.table, notice, services.now_ms())
    return BootReportAnswer(instance_id=instance_id)


@router.post("/instances/{instance_id}/agent-code")
@allow_anyone
def get_code(instance_id: InstanceId, body: CodeRequest, services: ServicesParameter) -> Response:
    """Redirect a booting instance to the archive of the agent's code, or send the archive.

    The redirect has the status 303, and the URL is valid for a few minutes. The proof must be
    signed for this purpose and for the digest of the code. Errors: `not_found` if no archive has
    the digest, or the pool has no such instance that is booting. `invalid` for wrong fields of the
    proof. `forbidden` if the proof is invalid or belongs to another instance. `unavailable` if the
    cloud does not answer.
    """
    proof = Proof(body.sha256, body.model_extra or {}, AGENT_CODE)
    _check_booting(services, instance_id, body.resource_pool, proof)
    key, now_ms = agent_code_key(body.sha256), services.now_ms()
    return download_or_redirect(services.objects, key, "application/gzip", now_ms, 303)


def _check_booting(services: Services, instance_id: str, pool: str, proof: Proof) -> None:
    """Check that the instance made the proof, and that the pool has the instance, which is booting.

    An instance is booting until the agent connects. Raises as `_check_signer`, and RequestError
    not_found for an instance that is not booting.
    """
    _check_signer(services, instance_id, pool, proof)
    if not is_booting_instance(services.table, pool, instance_id):
        text = f"pool {pool} has no instance {instance_id} that is booting"
        raise RequestError(Code.NOT_FOUND, text)


def _check_signer(services: Services, instance_id: str, pool: str, proof: Proof) -> None:
    """Check that the instance made the proof, and not another instance with this id.

    The cloud of the pool's launches verifies the proof, so that a proof cannot choose the cloud.

    Raises:
        CommandRefused: as `check_signer`.
        RequestError: not_found, if the pool has no instances that prove an identity; forbidden, if
            the proof is invalid or belongs to another instance; unavailable, if the cloud does not
            answer.
        RequestValidationError: the fields do not have the form of the cloud's proofs.
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
    if signer.id != instance_id:
        raise RequestError(Code.FORBIDDEN, f"the signature is not from {instance_id}")
    check_signer(services.table, pool, signer)


def _body_error(error: ValidationError) -> RequestValidationError:
    """Convert the errors of a proof's fields to errors of the body, without the wrong values.

    The fields of the proof are at the top level of the body.
    """
    faults = error.errors(include_url=False, include_input=False)
    return RequestValidationError([{**fault, "loc": ("body", *fault["loc"])} for fault in faults])
