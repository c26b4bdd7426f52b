"""The proof of a cloud instance's identity, which the instance sends to a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


# No slots: boot reports import this module under Python 3.8 too.
@dataclass(frozen=True)
class IdentityProof:
    """A proof of this instance's identity."""

    instance_id: str
    """The cloud's id or name of the instance."""
    fields: Mapping[str, str]
    """The proof's fields in a request; docs/agent-protocol.md lists the fields of each cloud."""
