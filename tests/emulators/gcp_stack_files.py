"""The files that the settings of a stack on Google Cloud name: pools, and sources that nobody
builds.
"""

from pathlib import Path

POOLS = "resource_pools:\n  - pool_name: default\n    description: ${not} %{ours}\n"


def gcp_files(folder: Path, pools: str = POOLS) -> dict[str, str]:
    """Write the files that settings name, and return those settings."""
    folder.mkdir(exist_ok=True)
    (folder / "pools.yaml").write_text(pools)
    (folder / "functions.tar.gz").write_bytes(b"sources")
    (folder / "suggest.tar.gz").write_bytes(b"suggestions")
    return {
        "detcloud:clusterConfig": str(folder / "pools.yaml"),
        "detcloud:archive": str(folder / "functions.tar.gz"),
        "detcloud:suggestArchive": str(folder / "suggest.tar.gz"),
    }
