"""Sessions with AWS that share botocore's descriptions of its services."""

import os
from functools import cache
from pathlib import Path
from typing import Any

from botocore.loaders import Loader
from botocore.session import Session


def new_session() -> Any:
    """A new session with the environment's region and credentials, for one thread."""
    session = Session()
    session.register_component("data_loader", _service_descriptions())
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
