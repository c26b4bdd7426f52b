"""The section of a pool on Compute Engine about mounted NFS shares."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field

from control_plane.config.providers import Folder
from control_plane.config.section import Section
from control_plane.text_forms import text_form

NFS_VERSION_DEFAULT: Final = "3"

NfsServer = Annotated[
    str,
    Field(
        pattern=text_form(
            r"^[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?$",
            "the name or the address of a server, like 10.0.0.2",
        )
    ),
]
# YAML parses both versions as numbers.
NfsVersion = Annotated[Literal["3", "4.1"], BeforeValidator(str)]


class NfsShare(Section):
    """A share of an NFS server, for example of Filestore, that Compute Engine instances mount at
    boot.
    """

    server: NfsServer
    """The address or the name of the server, which the instances' network reaches."""
    share: Folder
    """The path that the server exports."""
    folder: Folder
    """The folder where the share is mounted. Trials may mount this folder, or folders in it."""
    version: NfsVersion = NFS_VERSION_DEFAULT
    """The version of NFS; Filestore's zonal, regional and enterprise tiers also have 4.1."""


NfsShares = Annotated[tuple[NfsShare, ...], Field(strict=False, max_length=8)]
