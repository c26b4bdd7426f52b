"""Sessions with AWS that share botocore's descriptions of AWS's services."""

import os
import time
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from botocore.credentials import ContainerProvider, CredentialResolver
from botocore.exceptions import MetadataRetrievalError
from botocore.loaders import Loader
from botocore.session import Session
from botocore.utils import ContainerMetadataFetcher

from detcloud.shared import storage_variables
from detcloud.shared.outage import OUTAGE_SECONDS_MAX

# Botocore's settings as (name in files, variable, default, conversion). No setting is read from a
# variable or a file, because these belong to the user.
_NOT_CONFIGURED = {
    "profile": (None, None, None, None),
    "region": (None, None, None, None),
    "config_file": (None, None, os.devnull, None),
    "credentials_file": (None, None, os.devnull, None),
}
WAIT_SECONDS = 10.0
# The agent's answer if the cluster refuses keys for good.
_REFUSED = "response 403"
_OF_THE_MACHINE = "iam-role"


def new_session() -> Any:
    """Create a botocore session with the environment's region and credentials.

    The environment's variables and botocore's files are read at the first use, so missing
    credentials are no error here. Nothing is sent yet. Each call creates a new session, for a
    single thread.
    """
    session = Session()
    session.register_component("data_loader", _service_descriptions())
    return session


def new_storage_session(environment: Mapping[str, str] = os.environ) -> Any:
    """Create a botocore session for a trial's checkpoints.

    The session uses the keys and the region that the agent offers in `environment`. Without keys of
    the agent, the session uses the machine's role. Without a region of the agent, the session has
    no region. Empty variables count as missing. The user's variables and files have no effect. Keys
    are fetched at the first use, by a PatientFetcher if the agent offers keys. Nothing is sent yet.
    """
    session = Session(session_vars=_NOT_CONFIGURED)
    session.register_component("data_loader", _service_descriptions())
    if uri := environment.get(storage_variables.CREDENTIALS_URI):
        token = environment.get(storage_variables.CREDENTIALS_TOKEN, "")
        provider = ContainerProvider(
            {
                ContainerProvider.ENV_VAR_FULL: uri,
                ContainerProvider.ENV_VAR_AUTH_TOKEN: token,
            },
            PatientFetcher(),
        )
    else:
        provider = session.get_component("credential_provider").get_provider(_OF_THE_MACHINE)
    session.register_component("credential_provider", CredentialResolver([provider]))
    if region := environment.get(storage_variables.REGION):
        session.set_config_variable("region", region)
    return session


class PatientFetcher(ContainerMetadataFetcher):  # type: ignore[misc]
    """A fetcher of keys that waits up to OUTAGE_SECONDS_MAX for an agent without valid keys.

    During an outage of the cluster, the agent's keys may expire. A trial with a checkpoint to write
    then waits for new keys, because its work would be lost otherwise. `write` writes a line to the
    trial's log.
    """

    def __init__(
        self, sleep: Callable[[float], None] = time.sleep, write: Callable[[str], object] = print
    ) -> None:
        super().__init__(sleep=sleep)
        self._write = write

    def retrieve_full_uri(self, full_url: str, headers: Mapping[str, str] | None = None) -> Any:
        """Fetch the keys as ContainerMetadataFetcher does, and retry every WAIT_SECONDS.

        Return the parsed JSON answer. Each try consists of up to three requests, a second apart.
        Write a line about the first failed try of the call. An answer that is no JSON is a failure,
        too. Raise MetadataRetrievalError after a try that the agent refuses with status 403, or
        when the pauses between tries reach OUTAGE_SECONDS_MAX. Raise ValueError at once for an http
        URL of another machine, unless botocore knows the host as one of AWS.
        """
        waited = 0.0
        while True:
            try:
                return super().retrieve_full_uri(full_url, headers)
            except MetadataRetrievalError as error:
                if _REFUSED in str(error) or waited >= OUTAGE_SECONDS_MAX:
                    raise
                if not waited:
                    self._write(f"waiting for the credentials of the checkpoint storage: {error}")
            self._sleep(WAIT_SECONDS)
            waited += WAIT_SECONDS


class _ServiceDescriptions(Loader):  # type: ignore[misc]
    """A loader of descriptions of services, shared by all sessions of a process as a cache."""

    def list_available_services(self, type_name: str) -> list[str]:
        """Return the sorted names of all services that botocore describes, ignoring `type_name`.

        List the folders of the search paths on each call. The original method searches the folders
        of all 400 services for `type_name`, which takes half the time of creating a client.
        """
        folders = [path for path in self.search_paths if Path(path).is_dir()]
        entries = (entry for folder in folders for entry in os.scandir(folder))
        return sorted({entry.name for entry in entries if entry.is_dir()})


@cache
def _service_descriptions() -> _ServiceDescriptions:
    return _ServiceDescriptions()
