"""The files that the settings of a stack on Google Cloud name: pools, and placeholder sources."""

from pathlib import Path

POOLS = "resource_pools:\n  - pool_name: default\n    description: ${not} %{ours}\n"


def gcp_files(folder: Path, pools: str = POOLS) -> dict[str, str]:
    """Write pools and sources into `folder` and return the settings that name the files."""
    folder.mkdir(exist_ok=True)
    (folder / "pools.yaml").write_text(pools)
    (folder / "functions.tar.gz").write_bytes(b"sources")
    (folder / "suggest.tar.gz").write_bytes(b"suggestions")
    return {
        "detcloud:clusterConfig": str(folder / "pools.yaml"),
        "detcloud:archive": str(folder / "functions.tar.gz"),
        "detcloud:suggestArchive": str(folder / "suggest.tar.gz"),
    }
