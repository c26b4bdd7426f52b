"""Sessions with AWS, which share what botocore's files say of its services."""

import os
from functools import cache
from pathlib import Path
from typing import Any

from botocore.loaders import Loader
from botocore.session import Session


def session() -> Any:
    """A session with the environment's region and credentials, for one thread."""
    made = Session()
    made.register_component("data_loader", _descriptions())
    return made


class _Descriptions(Loader):  # type: ignore[misc]
    """The descriptions of services, each of which is read once in a process."""

    def list_available_services(self, type_name: str) -> list[str]:
        """Every service there is.

        The original looks for `type_name` in the folders of all four hundred services, which takes
        half the time of making a client; who wants a service opens its own folder next.
        """
        folders = [path for path in self.search_paths if Path(path).is_dir()]
        found = (entry for folder in folders for entry in os.scandir(folder))
        return sorted({entry.name for entry in found if entry.is_dir()})


@cache
def _descriptions() -> _Descriptions:
    return _Descriptions()
