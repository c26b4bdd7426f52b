"""The environment of the relay's task, and the command with which the task's container starts.

The container runs a public image of Python. The command fetches the code of the functions from a
signed URL, so that the task's role needs no permission to read. The stack and the API import this
module, and the task reads the variables.
"""

from typing import Final

CODE: Final = "DETCLOUD_RELAY_CODE"
"""The signed URL of the functions' archive."""
RECORD: Final = "DETCLOUD_RELAY_RECORD"
"""The attempt as the JSON of a RelayRecord, with the secret of tickets."""
REVISION: Final = "DETCLOUD_RELAY_REVISION"
"""The revision of the relay's row after which the task may write the row."""
TABLE: Final = "DETCLOUD_TABLE"
"""The name of the state table."""
PORT: Final = "DETCLOUD_RELAY_PORT"
"""The port to listen on."""
USER: Final = "DETCLOUD_RELAY_USER"
"""The number of the user that the task becomes after opening the port."""
ADDRESS_URL: Final = "DETCLOUD_RELAY_ADDRESS_URL"
"""The URL that answers the task's public address. The default is a service of AWS."""

HTTPS_PORT: Final = 443
NOBODY: Final = 65_534
CODE_KEY: Final = "relay/functions.zip"
"""The key of the functions' archive in the bucket of objects."""
MODULE: Final = "lambdas.aws.relay_task"

_BOOT: Final = f"""
import io, os, sys, tempfile, urllib.request, zipfile
with urllib.request.urlopen(os.environ.pop({CODE!r}), timeout=60) as answer:
    code = io.BytesIO(answer.read())
os.environ["PYTHONPATH"] = folder = tempfile.mkdtemp()
os.chmod(folder, 0o755)
zipfile.ZipFile(code).extractall(folder)
os.execv(sys.executable, [sys.executable, "-P", "-m", {MODULE!r}])
"""
COMMAND: Final = ("python3", "-c", _BOOT)
"""The command of the container."""
