"""The agent's code, as instances fetch it: what this very cluster was deployed with."""

import gzip
import hashlib
import io
import tarfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import detcloud

_LEFT_OUT = frozenset({"__pycache__", "_server"})


@dataclass(frozen=True)
class AgentCode:
    """A tar archive, compressed, whose bytes depend on nothing but the code."""

    content: bytes
    sha256: str


@cache
def agent_code() -> AgentCode:
    """The archive of the package `detcloud`; it needs no other package."""
    folder = Path(detcloud.__file__).resolve().parent
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(folder.rglob("*")):
            place = path.relative_to(folder.parent)
            if path.is_file() and not _LEFT_OUT.intersection(place.parts):
                content = path.read_bytes()
                info = tarfile.TarInfo(str(place))
                info.size, info.mode = len(content), 0o644
                archive.addfile(info, io.BytesIO(content))
    content = gzip.compress(packed.getvalue(), mtime=0)
    return AgentCode(content, hashlib.sha256(content).hexdigest())
