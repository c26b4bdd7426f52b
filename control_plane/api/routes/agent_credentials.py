"""Routes by which an agent requests credentials for a running trial: keys and registry logins."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Annotated

from pydantic import Field

from control_plane.access.principals import Role
from control_plane.agents.running_trial import RunningTrial, read_running_trial
from control_plane.agents.spec import parse_stored_config
from control_plane.agents.storage_access import allowed_access
from control_plane.agents.storage_credentials import StorageCredentials, StorageToken
from control_plane.agents.trial_grants import TrialGrants
from control_plane.api.agent_requests import AllocationName
from control_plane.api.dependencies import ServicesParameter
from control_plane.api.request_body import RequestBody
from control_plane.api.route_guards import Caller, guarded_router, require_role
from control_plane.api.routes.agents import AgentId, check_own
from control_plane.config.images import images_to_run
from control_plane.errors import Code, RequestError
from control_plane.queries.answer import Answer
from control_plane.services import Services
from control_plane.usecases.agent_enrolment import issue_early_login

router = guarded_router("agents")


class CredentialsBody(RequestBody):
    """The allocation of the trial that needs keys."""

    allocation: AllocationName


class ImageBody(RequestBody):
    """An image to pull."""

    image: Annotated[str, Field(min_length=1, max_length=512)]


class LoginBody(CredentialsBody):
    """The image to pull, and the allocation that will run in the image."""

    image: Annotated[str, Field(min_length=1, max_length=512)]


class CredentialsAnswer(Answer):
    """Keys that sign a trial's requests to a bucket.

    `expires_ms` is the end of the keys' validity in epoch ms.
    """

    key_id: str
    secret: str
    session_token: str
    expires_ms: int


class TokenAnswer(Answer):
    """A bearer token for a trial's requests to a bucket.

    `expires_ms` is the end of the token's validity in epoch ms. `account` is the service account
    that the token belongs to, or "".
    """

    access_token: str
    expires_ms: int
    account: str = ""


class LoginAnswer(Answer):
    """A login at the registry of an image, for a single pull."""

    username: str
    password: str


class EarlyLoginAnswer(Answer):
    """A login for the pull of a likely image, with the fields of `registry_auth`.

    Fields that the login does not have are empty.
    """

    username: str = ""
    password: str = ""
    auth: str = ""
    identitytoken: str = ""
    registrytoken: str = ""
    server: str = ""
    email: str = ""


@router.post("/agents/{agent_id}/storage-credentials")
@require_role(Role.AGENT)
def storage_credentials(
    agent_id: AgentId, body: CredentialsBody, caller: Caller, services: ServicesParameter
) -> CredentialsAnswer | TokenAnswer:
    """Issue credentials for the checkpoints of a trial that runs on the calling agent.

    Errors: `forbidden` for another agent, or if the allocation does not run on the agent.
    `not_found` if the cluster issues no credentials for the trial's checkpoint store. `unavailable`
    if the cloud does not answer.
    """
    check_own(agent_id, caller)
    issuer = services.credential_issuer
    if issuer is None:
        raise RequestError(Code.NOT_FOUND, "this cluster issues no storage credentials")
    running = _running_trial(services, agent_id, body)
    access = allowed_access(running, body.allocation, services.checkpoints, issuer)
    with _cloud_may_not_answer():
        issued = issuer.issue_credentials(f"trial-{body.allocation}", access)
    return _to_answer(issued)


@router.post("/agents/{agent_id}/data-credentials")
@require_role(Role.AGENT)
def data_credentials(
    agent_id: AgentId, body: CredentialsBody, caller: Caller, services: ServicesParameter
) -> CredentialsAnswer | TokenAnswer:
    """Issue credentials for the data that training code in the pool of the trial may use.

    Errors: `forbidden` for another agent, or if the allocation does not run on the agent.
    `not_found` if the cluster issues no data credentials in the pool. `unavailable` if the cloud
    does not answer.
    """
    check_own(agent_id, caller)
    grants, running = _grants(services), _running_trial(services, agent_id, body)
    if not grants.gives_data_keys(running.pool):
        raise RequestError(
            Code.NOT_FOUND, f"no storage credentials are issued in pool {running.pool}"
        )
    with _cloud_may_not_answer():
        keys = grants.issue_data_keys(f"trial-{body.allocation}", running.pool)
    return _to_answer(keys)


@router.post("/agents/{agent_id}/registry-credentials")
@require_role(Role.AGENT)
def registry_credentials(
    agent_id: AgentId, body: LoginBody, caller: Caller, services: ServicesParameter
) -> LoginAnswer:
    """Issue a login that can pull an image of a trial that runs on the agent.

    Errors: `forbidden` for another agent, or if the allocation does not run on the agent, or if the
    trial does not run in the image. `not_found` if the cluster issues no login for the image.
    `unavailable` if the cloud does not answer.
    """
    check_own(agent_id, caller)
    grants, running = _grants(services), _running_trial(services, agent_id, body)
    config = parse_stored_config(running.definition)
    if body.image not in images_to_run(config.environment.image).values():
        text = f"the trial of {body.allocation} does not run in {body.image}"
        raise RequestError(Code.FORBIDDEN, text)
    if not grants.gives_login(body.image):
        raise RequestError(Code.NOT_FOUND, f"no registry login is issued for {body.image}")
    with _cloud_may_not_answer():
        login = grants.issue_login(f"pull-{body.allocation}", body.image)
    return LoginAnswer(**asdict(login))


@router.post("/agents/{agent_id}/early-image-credentials")
@require_role(Role.AGENT)
def early_image_credentials(
    agent_id: AgentId, body: ImageBody, caller: Caller, services: ServicesParameter
) -> EarlyLoginAnswer:
    """Issue a login for the image that the cluster named to the agent at the enrolment.

    Errors: `forbidden` for another agent, for a machine that the cluster did not launch, and for an
    image in which the pool's first jobs do not run any more. `not_found` if the pull needs no
    login. `unavailable` if the cloud does not answer.
    """
    check_own(agent_id, caller)
    with _cloud_may_not_answer():
        login = issue_early_login(services, agent_id, body.image)
    return EarlyLoginAnswer.model_validate(login)


def _to_answer(issued: StorageCredentials | StorageToken) -> CredentialsAnswer | TokenAnswer:
    answer = TokenAnswer if isinstance(issued, StorageToken) else CredentialsAnswer
    return answer(**asdict(issued))


@contextmanager
def _cloud_may_not_answer() -> Iterator[None]:
    """Raise RequestError unavailable in place of an OSError that the context raises."""
    try:
        yield
    except OSError as error:
        raise RequestError(Code.UNAVAILABLE, str(error)) from None


def _grants(services: Services) -> TrialGrants:
    if services.trial_grants is None:
        raise RequestError(Code.NOT_FOUND, "this cluster gives trials no other credentials")
    return services.trial_grants


def _running_trial(services: Services, agent_id: str, body: CredentialsBody) -> RunningTrial:
    return read_running_trial(services.engine, services.experiments, agent_id, body.allocation)
