"""The archive of the agent's code: the code that this cluster was deployed with.

The archive also contains packages for trials in images without these packages
(`control_plane/agents/bundled_packages.py`).

Instances download the archive when they boot, from the object store or, in another cloud, through
the API. The archive is stored under its digest before any instance is launched with the digest. So
an instance launched before a deployment, or before one function was rolled back, still gets the
archive whose digest its boot script names.
"""

import gzip
import hashlib
import io
import tarfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath

import detcloud
from control_plane.agents.bundled_packages import bundle_files
from control_plane.objects.store import ObjectKey, ObjectStore

AGENT_CODE_NAMESPACE = "agent-code"
"""The namespace of the archives in the object store."""
_BUNDLES = PurePosixPath("detcloud/_packages")
_EXCLUDED = frozenset({"__pycache__", "_server", _BUNDLES.name})
# The highest level takes twice the time for 2 % fewer bytes.
_COMPRESSION = 6


@dataclass(frozen=True)
class AgentCode:
    """A compressed tar archive of the agent's code; equal code gives equal bytes."""

    content: bytes
    """The compressed archive."""
    sha256: str
    """The digest of `content`, in hexadecimal."""


def agent_code_key(sha256: str) -> ObjectKey:
    """Return the key of the archive with this digest in the object store."""
    return ObjectKey(AGENT_CODE_NAMESPACE) / sha256


def keep_agent_code(objects: ObjectStore, code: AgentCode | None = None) -> None:
    """Write an archive to the object store, unless the archive is already stored.

    Raises OSError if the object store does not answer.

    Args:
        objects: the object store.
        code: the archive. None for this cluster's archive.
    """
    code = code or agent_code()
    objects.put(agent_code_key(code.sha256), code.content, if_absent=True)


@cache
def agent_code() -> AgentCode:
    """Return the archive of the package `detcloud`, which needs no other package.

    The archive is built once per process from the installed files, with the bundles of packages
    that are installed here. Raises OSError if a file cannot be read.
    """
    folder = Path(detcloud.__file__).resolve().parent
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path in sorted(folder.rglob("*")):
            place = path.relative_to(folder.parent)
            if path.is_file() and not _EXCLUDED.intersection(place.parts):
                _add_file(archive, PurePosixPath(place), path.read_bytes())
        for bundled, content in bundle_files():
            _add_file(archive, _BUNDLES / bundled, content)
    content = gzip.compress(packed.getvalue(), compresslevel=_COMPRESSION, mtime=0)
    return AgentCode(content, hashlib.sha256(content).hexdigest())


def _add_file(archive: tarfile.TarFile, place: PurePosixPath, content: bytes) -> None:
    """Append a file to the archive, without owner and time."""
    info = tarfile.TarInfo(str(place))
    info.size, info.mode = len(content), 0o644
    archive.addfile(info, io.BytesIO(content))
