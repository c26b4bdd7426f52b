"""The inputs of a team's stack in tests: settings, pools, and minimal functions."""

import zipfile
from pathlib import Path

from infra.aws.names import FUNCTIONS
from tests.emulators.ministack import ACCOUNT, REGION

# Printing spares the emulator a wait, and the log shows the events of each function.
HANDLER = """
import json, os
def handler(event, context):
    print(json.dumps(event))
    return {"statusCode": 200, "body": os.environ["DETCLOUD_CLUSTER"] + event.get("rawPath", "")}
"""


def team_config(folder: Path) -> dict[str, str]:
    """Return a stack's configuration; write its files to `folder`."""
    archive = folder / "functions.zip"
    with zipfile.ZipFile(archive, "w") as written:
        written.writestr("lambdas/__init__.py", "")
        written.writestr("lambdas/aws/__init__.py", "")
        for name in FUNCTIONS:
            written.writestr(f"lambdas/aws/{name}.py", HANDLER)
    (folder / "pools.yaml").write_text("resource_pools:\n  - pool_name: default\n")
    return {
        "detcloud:account": ACCOUNT,
        "detcloud:region": REGION,
        "detcloud:clusterConfig": str(folder / "pools.yaml"),
        "detcloud:archive": str(archive),
        "detcloud:suggestArchive": str(archive),
        "detcloud:adminSha256": "a" * 64,
        "detcloud:alarmEmail": "vision@example.com",
        "detcloud:dashboard": "true",
        "detcloud:protect": "false",
    }
