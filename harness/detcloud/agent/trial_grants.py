"""The agent's side of what a cluster gives trials to use: keys, registry logins, the region.

Servers of keys are made when a trial first needs them, so that an idle agent stays small.
"""

from __future__ import annotations

from contextlib import closing
from functools import cached_property
from typing import TYPE_CHECKING, Any

from detcloud.agent.assignment.environment import REGION_VARIABLES
from detcloud.shared import storage_variables
from detcloud.shared.http import ApiError, Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from detcloud.agent.storage_credentials import CredentialServer, StorageKeys, StorageToken

GIVEN = "given"
# Of `data_credentials`: tokens of a service account of Google, and not keys of AWS.
GOOGLE = "google"


class TrialGrants:
    """Asks the cluster at `url` as the agent `agent`, with the session's token at the time.

    `region` is that of the machine's cloud, "" where it has none.
    """

    def __init__(
        self,
        url: str,
        agent: str,
        session_token: Callable[[], str | None],
        work: Path,
        log_line: Callable[[str], None],
        region: str = "",
    ) -> None:
        self._url = url
        self._agent = agent
        self._session_token = session_token
        self._work = work
        self._log_line = log_line
        self._region = region

    def resume(self) -> None:
        """Serve keys where trials of an earlier agent ask for them."""
        if (self._work / "credentials.json").exists():
            _ = self._server

    def variables(self, allocation: str, spec: Mapping[str, Any]) -> dict[str, str]:
        """The variables by which a trial finds its keys and the region."""
        store = spec.get("storage") or {}
        storage, google = store.get("credentials") == GIVEN, store.get("type") == "gcs"
        data, google_data = (spec.get("data_credentials") == form for form in (GIVEN, GOOGLE))
        found = {}
        if storage or data or google_data:
            found = self._server.variables(
                allocation, storage=storage, data=data, google=google, google_data=google_data
            )
        if self._region:
            found |= dict.fromkeys(REGION_VARIABLES, self._region)
            if storage:
                found[storage_variables.REGION] = self._region
        return found

    def login_issuer(
        self, allocation: str, spec: Mapping[str, Any]
    ) -> Callable[[str], Mapping[str, str] | None] | None:
        """Return what fetches a fresh login for a pull of an image, see `fetch_login`; None where
        the cluster gives none.
        """
        if spec.get("registry_credentials") != GIVEN:
            return None
        return lambda image: self.fetch_login(allocation, image)

    def fetch_login(self, allocation: str, image: str) -> Mapping[str, str] | None:
        """Fetch a login for a pull of the image; None where the cluster has none for it. Raises
        OSError and ApiError.
        """
        path = f"/api/v1/agents/{self._agent}/registry-credentials"
        body = {"allocation": allocation, "image": image}
        try:
            with closing(Transport(self._url, self._session_token())) as client:
                answer = client.request("POST", path, body, retry=False)
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return {name: str(answer[name]) for name in ("username", "password")}

    @cached_property
    def _server(self) -> CredentialServer:
        from detcloud.agent.storage_credentials import CredentialServer, fetch_keys

        def fetch(holder: str) -> StorageKeys | StorageToken:
            with closing(Transport(self._url, self._session_token())) as client:
                return fetch_keys(client, self._agent, holder)

        return CredentialServer(self._work, fetch, self._log_line)
