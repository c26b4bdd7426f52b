"""The archive of the agent's code that instances fetch: the code this cluster was deployed with.

Before instances are launched with it, it is kept in the object store under its digest, from which
they fetch it themselves, those of another cloud by way of the API. So what was launched before a
deploy, or after a rollback of one function alone, gets the code that it asks for.
"""

import gzip
import hashlib
import io
import tarfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import detcloud
from control_plane.objects.store import ObjectKey, ObjectStore

AGENT_CODE_NAMESPACE = "agent-code"
_EXCLUDED = frozenset({"__pycache__", "_server"})


@dataclass(frozen=True)
class AgentCode:
    """A compressed tar archive, whose bytes depend only on the code."""

    content: bytes
    sha256: str


def agent_code_key(sha256: str) -> ObjectKey:
    """The key of an archive in the object store."""
    return ObjectKey(AGENT_CODE_NAMESPACE) / sha256


def keep_agent_code(objects: ObjectStore) -> None:
    """Write this cluster's archive to the object store, unless it is already stored."""
    code = agent_code()
    objects.put(agent_code_key(code.sha256), code.content, if_absent=True)


@cache
def agent_code() -> AgentCode:
    """Build the archive of the package `detcloud`, which needs no other package."""
    folder = Path(detcloud.__file__).resolve().parent
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(folder.rglob("*")):
            place = path.relative_to(folder.parent)
            if path.is_file() and not _EXCLUDED.intersection(place.parts):
                content = path.read_bytes()
                info = tarfile.TarInfo(str(place))
                info.size, info.mode = len(content), 0o644
                archive.addfile(info, io.BytesIO(content))
    content = gzip.compress(packed.getvalue(), mtime=0)
    return AgentCode(content, hashlib.sha256(content).hexdigest())
