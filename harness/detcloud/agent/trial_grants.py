"""The cluster's grants to trials, as the agent passes them on: keys, registry logins, the region.

The server of keys starts when a trial first needs keys, so that an idle agent stays small.
"""

from __future__ import annotations

from contextlib import closing
from functools import cached_property
from typing import TYPE_CHECKING, Any

from detcloud.agent.assignment.environment import REGION_VARIABLES
from detcloud.agent.layer_archives.cluster import ClusterArchives
from detcloud.shared import storage_variables
from detcloud.shared.http import ApiError, Transport

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from detcloud.agent.issued_keys import StorageKeys, StorageToken
    from detcloud.agent.storage_credentials import CredentialServer

GIVEN = "given"
# The value of `data_credentials` for tokens of a Google service account in place of AWS keys.
GOOGLE = "google"


class TrialGrants:
    """The grants that the cluster at `url` issues to trials of the agent with the id `agent`.

    `session_token` returns the agent's current token for each request, or None without a session.
    `work` is the agent's work directory. `log_line` writes to the agent's log. `region` is the
    region of the machine's cloud, or "".
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

    @property
    def archives(self) -> ClusterArchives:
        """A new client for the archives of installed packages in the cluster."""
        return ClusterArchives(self._url, self._agent, self._session_token)

    def resume(self) -> None:
        """Start the server of keys if an earlier agent served keys from this work directory.

        Wait until the earlier port is free, because running trials keep requesting keys there.
        """
        if (self._work / "credentials.json").exists():
            _ = self._server

    def variables(self, allocation: str, spec: Mapping[str, Any]) -> dict[str, str]:
        """Return the environment variables by which a trial finds its keys and the region.

        Return an empty dictionary if the spec grants no keys and the machine has no region. The
        first call with granted keys starts the server of keys.
        """
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
        """Return a function that fetches a login for an image name from the cluster.

        The function returns None if the cluster has no login for the image's registry. It raises
        OSError if the cluster does not answer, ApiError after another refusal.

        Return None if the trial's spec says that the cluster issues no registry logins.
        """
        if spec.get("registry_credentials") != GIVEN:
            return None
        return lambda image: self.fetch_login(allocation, image)

    def fetch_early_login(self, image: str) -> Mapping[str, str] | None:
        """Fetch a login for the image that the cluster named at the enrolment.

        The fields are those of `registry_auth`. Return None if the cluster answers 404, because the
        pull needs no login. Raise OSError if the cluster does not answer. Raise ApiError after
        another refusal, for example because the image is not likely any more.
        """
        path = f"/api/v1/agents/{self._agent}/early-image-credentials"
        return self._request_login(path, {"image": image})

    def fetch_login(self, allocation: str, image: str) -> Mapping[str, str] | None:
        """Fetch a fresh login for a pull of the image: `username` and `password`.

        Return None if the cluster answers 404, because it has no login for the image's registry.
        Raise OSError if the cluster does not answer. Raise ApiError after another refusal.
        """
        path = f"/api/v1/agents/{self._agent}/registry-credentials"
        return self._request_login(path, {"allocation": allocation, "image": image})

    def _request_login(self, path: str, body: Mapping[str, str]) -> Mapping[str, str] | None:
        """Request a login, and return its texts that are not empty. Return None after a 404.

        Raise OSError if the cluster does not answer, and ApiError after another refusal.
        """
        try:
            with closing(Transport(self._url, self._session_token())) as client:
                answer = client.request("POST", path, body, retry=False)
        except ApiError as error:
            if error.status == 404:
                return None
            raise
        return {str(name): str(text) for name, text in answer.items() if text}

    @cached_property
    def _server(self) -> CredentialServer:
        from detcloud.agent.issued_keys import fetch_keys
        from detcloud.agent.storage_credentials import CredentialServer

        def fetch(holder: str) -> StorageKeys | StorageToken:
            with closing(Transport(self._url, self._session_token())) as client:
                return fetch_keys(client, self._agent, holder)

        return CredentialServer(self._work, fetch, self._log_line)
