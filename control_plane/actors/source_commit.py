"""The commit of an experiment's code. Pure."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SourceCommit:
    """The section `integrations.github` of an experiment's configuration."""

    commit: str
    """The id of the commit, 40 hexadecimal digits."""
    repository: str = ""
    """The repository as `OWNER/REPOSITORY`. "": the repository of each webhook."""
