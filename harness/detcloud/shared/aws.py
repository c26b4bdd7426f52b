"""Sessions with AWS that share botocore's descriptions of its services."""

import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from botocore.credentials import ContainerProvider, CredentialResolver
from botocore.loaders import Loader
from botocore.session import Session

from detcloud.shared import storage_variables

# Names of settings by botocore, as (name in its files, variable, default, conversion): none of
# these comes from a variable or a file, which are the user's.
_NOT_CONFIGURED = {
    "profile": (None, None, None, None),
    "region": (None, None, None, None),
    "config_file": (None, None, os.devnull, None),
    "credentials_file": (None, None, os.devnull, None),
}
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
            }
        )
    else:
        provider = session.get_component("credential_provider").get_provider(_OF_THE_MACHINE)
    session.register_component("credential_provider", CredentialResolver([provider]))
    if region := environment.get(storage_variables.REGION):
        session.set_config_variable("region", region)
    return session


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
