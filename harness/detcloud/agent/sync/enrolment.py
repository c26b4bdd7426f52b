"""The enrolment of an agent: the fields, the tokens that are tried, and the answer."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from detcloud.agent.address import LOOPBACK
from detcloud.shared.http import ApiError, Transport, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from detcloud.agent.credential import Credential
    from detcloud.agent.slots import Slot

# The statuses of answers that refuse a token.
FORBIDDEN = 403
REFUSED_TOKEN = (401, FORBIDDEN)


@dataclass(frozen=True, slots=True)
class AgentIdentity:
    """The fields of an agent's enrolment request."""

    name: str
    resource_pool: str
    slots: Sequence[Slot]
    version: str
    """The agent's version of detcloud."""
    label: str
    """The label that experiments must have to run here, or ""."""
    address: str
    """The address at which trials on other machines reach the trials here."""
    runtime: str = ""
    """The container runtime: `process` or `docker`."""
    installation: str = ""
    """The id of the work directory, by which the cluster tells a restart from a second agent."""
    code: str = ""
    """The SHA-256 of the archive of the agent's code. "" if the agent does not update itself."""
    only_user: str = ""
    """The only user that the agent can run trials as, as `UID:GID`. "": any user."""


@dataclass(frozen=True, slots=True)
class Enrolment:
    """The cluster's answer to an enrolment."""

    agent_id: str
    epoch: int
    """The number of the session. A later enrolment under the same name fences this session."""
    lease_ms: int
    """The time in milliseconds after which a silent agent counts as lost."""
    incarnation: str
    """The incarnation of the cluster's state, or "" if the cluster names none."""


class EnrolmentSender:
    """Sends the enrolments of an agent, with the credential of the machine or a join token."""

    def __init__(
        self,
        url: str,
        join_token: str,
        identity: AgentIdentity,
        open_transport: Callable[[str, str | None], Transport],
    ) -> None:
        """Create a sender. Nothing is sent yet.

        Args:
            url: the cluster's API.
            join_token: the token for the first enrolment. "" if only the credential is known.
            identity: the fields of the enrolment.
            open_transport: opens connections to a URL with a token.
        """
        self._url = url
        self._join_token = join_token
        self._identity = identity
        self._open_transport = open_transport
        self.credential: Credential | None = None
        """The credential of the machine. None for an instance of a cloud."""
        self.find_address: Callable[[], str] | None = None
        """Returns the present address of the machine. None for a fixed address."""

    def send(self, machine: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send the enrolment with each token that may be valid, and return the cluster's answer.

        `machine` has fields of the enrolment that change during the agent's life. The credential of
        the machine comes first, then the join token. Store the credential that
        the cluster has accepted. Raise the ApiError of the last token if the cluster refuses all
        tokens, Unreachable without an answer, and OSError if the credential cannot be stored.
        """
        if self.find_address is not None:
            self._identity = replace(self._identity, address=self.find_address())
        credential = self.credential
        if credential is None:
            return self._send_once(self._join_token, machine or {})
        digest = {**(machine or {}), "credential_sha256": credential.prepare()}
        first = [self._join_token] if self._join_token and not credential.is_usable else []
        try:
            answer = self._send_with_any([*first, *credential.tokens()], digest)
        except ApiError as error:
            if error.status not in REFUSED_TOKEN or first or not self._join_token:
                raise
            # The credential was revoked, and somebody has given the machine a new join token.
            credential.forget_present()
            digest = {**digest, "credential_sha256": credential.prepare()}
            answer = self._send_once(self._join_token, digest)
        if answer.get("credential") is True:
            credential.confirm()
        return answer

    def _send_once(self, token: str, more: Mapping[str, Any]) -> dict[str, Any]:
        """Send the enrolment with a token, and return the answer. Raise as `Transport.request`."""
        slots = [slot.fields for slot in self._identity.slots]
        client = self._open_transport(self._url, token)
        try:
            answer = client.request(
                "POST",
                "/api/v1/agents",
                {**asdict(self._identity), "slots": slots, **more},
                retry=False,
            )
        finally:
            client.close()
        if not isinstance(answer, dict):
            raise Unreachable(f"{self._url} answered an enrolment with {type(answer).__name__}")
        return answer

    def _send_with_any(self, tokens: Sequence[str], more: dict[str, Any]) -> dict[str, Any]:
        """Send the enrolment with each token until the cluster accepts a token; return the answer.

        Raise an ApiError if the cluster refuses all tokens: of the first token with the status 403,
        whose message says more than that of an unknown token, else of the last token.
        """
        refusal: ApiError | None = None
        for token in tokens:
            try:
                return self._send_once(token, more)
            except ApiError as error:
                if error.status not in REFUSED_TOKEN:
                    raise
                if refusal is None or refusal.status != FORBIDDEN:
                    refusal = error
        assert refusal is not None
        raise refusal

    def has_moved(self) -> bool:
        """Return whether the machine has another address than at the last enrolment.

        Without a route to the cluster, the address is unknown, and the result is False.
        """
        if self.find_address is None:
            return False
        return self.find_address() not in (LOOPBACK, self._identity.address)
