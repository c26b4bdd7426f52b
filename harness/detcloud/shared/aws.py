"""Sessions with AWS that share botocore's descriptions of its services."""

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

# Names of settings by botocore, as (name in its files, variable, default, conversion): none of
# these comes from a variable or a file, which are the user's.
_NOT_CONFIGURED = {
    "profile": (None, None, None, None),
    "region": (None, None, None, None),
    "config_file": (None, None, os.devnull, None),
    "credentials_file": (None, None, os.devnull, None),
}
WAIT_SECONDS = 10.0
# What an agent answers whom the cluster gives no keys to.
_REFUSED = "response 403"
_OF_THE_MACHINE = "iam-role"


def new_session() -> Any:
    """A new session with the environment's region and credentials, for one thread."""
    session = Session()
    session.register_component("data_loader", _service_descriptions())
    return session


def new_storage_session(environment: Mapping[str, str] = os.environ) -> Any:
    """A new session for a trial's checkpoints, with the keys and the region that its agent gives
    them, or without those the role of the machine.

    What the user's code finds in the environment and in files of its own has no effect on it.
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
    """A fetcher of keys that waits for an agent which has none for now, for OUTAGE_SECONDS_MAX.

    While the cluster is away the agent hands out those that it has until they end. A trial that
    then has a checkpoint to write waits with it: without keys its work would be lost.
    """

    def __init__(
        self, sleep: Callable[[float], None] = time.sleep, write: Callable[[str], object] = print
    ) -> None:
        super().__init__(sleep=sleep)
        self._write = write

    def retrieve_full_uri(self, full_url: str, headers: Mapping[str, str] | None = None) -> Any:
        """Return the keys, as ContainerMetadataFetcher has it. Raises MetadataRetrievalError."""
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
    """A loader of descriptions of services that reads each once in a process."""

    def list_available_services(self, type_name: str) -> list[str]:
        """The names of all services.

        The original looks for `type_name` in the folders of all four hundred services, which takes
        half the time of making a client; the caller opens the folder of its own service next.
        """
        folders = [path for path in self.search_paths if Path(path).is_dir()]
        entries = (entry for folder in folders for entry in os.scandir(folder))
        return sorted({entry.name for entry in entries if entry.is_dir()})


@cache
def _service_descriptions() -> _ServiceDescriptions:
    return _ServiceDescriptions()
