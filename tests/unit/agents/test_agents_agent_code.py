"""The archive of the agent's code that instances fetch."""

import hashlib
import io
import subprocess
import sys
import tarfile
from pathlib import Path

from control_plane.agents.agent_code import AgentCode, agent_code, agent_code_key, keep_agent_code
from control_plane.objects.directory import DirectoryObjectStore
from control_plane.objects.signing import HmacUrlSigner
from tests.patience import PROCESS_SECONDS_MAX


def test_archives_of_earlier_versions_stay_stored(tmp_path: Path) -> None:
    objects = DirectoryObjectStore(tmp_path, HmacUrlSigner(b"s" * 32))
    keep_agent_code(objects)
    keep_agent_code(objects)
    before = agent_code()
    # A second deployment, with other code.
    content = b"another version"
    other = AgentCode(content, hashlib.sha256(content).hexdigest())
    keep_agent_code(objects, other)
    for code in (before, other):
        assert b"".join(objects.get(agent_code_key(code.sha256))) == code.content


def test_agent_runs_from_archive_without_other_packages(tmp_path: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(agent_code().content)) as archive:
        archive.extractall(tmp_path, filter="data")
    # -I and -S: neither the environment nor installed packages are seen.
    run = f"import sys; sys.path[:0] = [{str(tmp_path)!r}]; sys.argv[1:] = ['--help'];"
    run += "import detcloud.agent.__main__ as agent; agent.main()"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", run],
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr
    assert "--token-file" in done.stdout


def test_equal_code_gives_equal_archives() -> None:
    # Installed packages may have changed since an earlier test, for example the authorities of
    # certifi. Digests are compared, because pytest takes an hour to compare different archives.
    agent_code.cache_clear()
    first = agent_code().sha256
    agent_code.cache_clear()
    assert agent_code().sha256 == first
