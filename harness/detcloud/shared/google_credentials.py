"""Credentials for Google's clients in a trial: tokens that the trial's agent has."""

import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta

from google.auth.credentials import Credentials
from google.auth.exceptions import RefreshError

from detcloud.shared import storage_variables
from detcloud.shared.outage import OUTAGE_SECONDS_MAX

WAIT_SECONDS = 10.0
ANSWER_SECONDS = 30.0
# What an agent answers whom the cluster gives no token to.
_REFUSED = 403


class AgentCredentials(Credentials):
    """Tokens of the agent at `uri`, who must be shown its own `agent_token` for them.

    An agent that has none for now is waited for, for OUTAGE_SECONDS_MAX: a trial that then has a
    checkpoint to write would lose its work without a token.
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
        """Fetch a token. Raises RefreshError."""
        waited = 0.0
        while True:
            try:
                self._fetch()
                return
            except (OSError, ValueError, KeyError) as error:
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
        # The address is this machine's own.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=ANSWER_SECONDS) as answer:
            fields = json.loads(answer.read())
        now = datetime.now(UTC).replace(tzinfo=None)
        self.expiry = now + timedelta(seconds=int(fields["expires_in"]))
        self.token = str(fields["access_token"])


def agent_credentials(environment: Mapping[str, str] = os.environ) -> AgentCredentials | None:
    """The credentials that the trial's agent offers, None where it offers none."""
    uri = environment.get(storage_variables.CREDENTIALS_URI)
    if not uri:
        return None
    return AgentCredentials(uri, environment.get(storage_variables.CREDENTIALS_TOKEN, ""))
