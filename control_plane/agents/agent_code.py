"""The archive of the agent's code that instances fetch: the code this cluster was deployed with."""

import gzip
import hashlib
import io
import tarfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import detcloud

_EXCLUDED = frozenset({"__pycache__", "_server"})


@dataclass(frozen=True)
class AgentCode:
    """A compressed tar archive, whose bytes depend only on the code."""

    content: bytes
    sha256: str


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
