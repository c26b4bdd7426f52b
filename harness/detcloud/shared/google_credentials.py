"""Credentials for Google's clients in a trial, with tokens from the trial's agent."""

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from http.client import HTTPException

from google.auth.credentials import Credentials
from google.auth.exceptions import RefreshError

from detcloud.shared import storage_variables
from detcloud.shared.outage import OUTAGE_SECONDS_MAX

WAIT_SECONDS = 10.0
ANSWER_SECONDS = 30.0
# The agent's status if the cluster refuses a token for good.
_REFUSED = 403


class AgentCredentials(Credentials):
    """Google credentials that fetch access tokens from the trial's agent.

    Args:
        uri: the URL of the agent's server for this trial.
        agent_token: the token that authenticates the trial to the agent.
        sleep: pauses for a number of seconds.
        write: writes a line to the trial's log.
    """

    def __init__(
        self,
        uri: str,
        agent_token: str,
        sleep: Callable[[float], None] = time.sleep,
        write: Callable[[str], object] = print,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._uri = uri
        self._agent_token = agent_token
        self._sleep = sleep
        self._write = write

    def refresh(self, request: object) -> None:
        """Fetch a token from the agent, and set `token` and `expiry`. `request` is not used.

        After any failure, also an invalid answer, retry every WAIT_SECONDS until the pauses reach
        OUTAGE_SECONDS_MAX, since a trial without a token would lose its work. Write a line about
        the first failure of the call. Then raise RefreshError, or at once if the agent refuses the
        token with status 403. The old token then stays set. An answer with a null token gives the
        text "None". Requests to the agent use no proxy.
        """
        waited = 0.0
        while True:
            try:
                self._fetch()
                return
            except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
                is_refused = isinstance(error, urllib.error.HTTPError) and error.code == _REFUSED
                if is_refused or waited >= OUTAGE_SECONDS_MAX:
                    text = f"the agent issues no token for the checkpoint storage: {error}"
                    raise RefreshError(text) from error
                if not waited:
                    self._write(f"waiting for a token of the checkpoint storage: {error}")
            self._sleep(WAIT_SECONDS)
            waited += WAIT_SECONDS

    def _fetch(self) -> None:
        headers = {"Authorization": self._agent_token}
        request = urllib.request.Request(self._uri, headers=headers)
        # The address is on this machine, which a proxy could not reach.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=ANSWER_SECONDS) as answer:
            fields = json.loads(answer.read())
        now = datetime.now(UTC).replace(tzinfo=None)
        token, seconds = str(fields["access_token"]), int(fields["expires_in"])
        self.token, self.expiry = token, now + timedelta(seconds=seconds)


def agent_credentials(environment: Mapping[str, str] = os.environ) -> AgentCredentials | None:
    """Return the credentials that the trial's agent offers in the environment variables.

    Return None if the variable of the agent's server is missing or empty. Nothing is sent yet. A
    missing token of the agent becomes "".
    """
    uri = environment.get(storage_variables.CREDENTIALS_URI)
    if not uri:
        return None
    return AgentCredentials(uri, environment.get(storage_variables.CREDENTIALS_TOKEN, ""))
