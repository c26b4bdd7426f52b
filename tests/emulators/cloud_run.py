"""A team's cluster on Google Cloud on this machine: its functions are processes, as containers run
them; their state is in the emulator of Firestore and their objects in that of Cloud Storage; events
come from the commits, and minutes go by.

Everybody may call these functions: what Cloud Run's IAM refuses is not here.
"""

import hashlib
import json
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from control_plane.gcp.row_documents import TRIGGER_PATTERNS
from control_plane.gcp.state_table import FirestoreTable
from detcloud.client import Client
from lambdas.deployed_configuration import OBJECT
from tests.emulators.eventarc import (
    ACCESS_TOKEN,
    CALL_SECONDS_MAX,
    TOKEN_PATH,
    Eventarc,
    Trigger,
    eventarc,
)
from tests.emulators.fake_gcs import FakeGcs
from tests.emulators.firestore import PROJECT, Firestore
from tests.emulators.gcs_boundaries import NarrowedTokens, narrowed_storage
from tests.emulators.server import free_port, serving
from tests.patience import ANSWER_SECONDS_MAX

ROOT = Path(__file__).parents[2]
FUNCTIONS = ("api", "advance", "tick", "checkpoint_gc")
# A minute is long where somebody waits for it.
TICK_SECONDS = 2.0
REGION = "us-central1"
STORAGE_ACCOUNT = f"storage@{PROJECT}.iam.gserviceaccount.com"
ACCOUNT = f"functions@{PROJECT}.iam.gserviceaccount.com"


@dataclass
class CloudRunCluster:
    """A cluster whose functions run at `urls`, with an administrator's `token`. `storage` is the
    store as trials have it, which lets nobody do more than a token of `tokens` says. `failures` are
    ticks that were not answered as they should.
    """

    urls: Mapping[str, str]
    token: str
    events: Eventarc
    table: FirestoreTable
    gcs_url: str
    storage: str
    checkpoints: str
    tokens: NarrowedTokens
    folder: Path
    failures: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        """The address of the API."""
        return self.urls["api"]

    def client(self) -> Client:
        """Return a client of the administrator."""
        return Client(self.url, self.token)

    def call(self, function: str) -> int:
        """Call a function as Cloud Scheduler does; returns the status of its answer. Raises
        HTTPError for one that is no success.
        """
        request = urllib.request.Request(self.urls[function], b"", method="POST")
        with urllib.request.urlopen(request, timeout=CALL_SECONDS_MAX) as answer:
            return int(answer.status)

    def stored_checkpoints(self) -> list[str]:
        """Return the names of the objects in the bucket of checkpoints."""
        url = f"{self.gcs_url}/storage/v1/b/{self.checkpoints}/o"
        with urllib.request.urlopen(url, timeout=ANSWER_SECONDS_MAX) as answer:
            return [it["name"] for it in json.load(answer).get("items", ())]

    def log_lines(self, function: str) -> list[Mapping[str, object]]:
        """Return what a function has logged."""
        text = (self.folder / f"{function}.log").read_text(errors="replace")
        return [json.loads(line) for line in text.splitlines()]


@contextmanager
def cloud_run(
    firestore: Firestore, gcs: FakeGcs, folder: Path, pools: str
) -> Iterator[CloudRunCluster]:
    """Run a cluster of its own, with a configuration of its resource pools."""
    database, token = firestore.new_database(), "dct_of-the-administrator"
    objects, checkpoints = gcs.new_bucket(), gcs.new_bucket()
    urls = {name: f"http://127.0.0.1:{free_port()}" for name in FUNCTIONS}
    _upload(gcs, objects, OBJECT, pools.encode())
    with ExitStack() as stack:
        events, address = stack.enter_context(eventarc(firestore.url))
        tokens = NarrowedTokens(STORAGE_ACCOUNT, {ACCESS_TOKEN})
        narrowed = stack.enter_context(narrowed_storage(tokens, gcs.url))
        environment = {
            "FIRESTORE_EMULATOR_HOST": address,
            "STORAGE_EMULATOR_HOST": gcs.url,
            "GOOGLE_APPLICATION_CREDENTIALS": str(write_key(folder, address)),
            "DETCLOUD_CLUSTER": "detcloud-vision",
            "DETCLOUD_API_URL": urls["api"],
            "DETCLOUD_PROJECT": PROJECT,
            "DETCLOUD_REGION": REGION,
            "DETCLOUD_DATABASE": database,
            "DETCLOUD_OBJECTS": objects,
            "DETCLOUD_CHECKPOINTS": checkpoints,
            "DETCLOUD_CONFIG_SHA256": hashlib.sha256(pools.encode()).hexdigest(),
            "DETCLOUD_ADMIN_SHA256": hashlib.sha256(token.encode()).hexdigest(),
            "DETCLOUD_INSTANCE_ACCOUNT": f"instances@{PROJECT}.iam.gserviceaccount.com",
            "DETCLOUD_STORAGE_ACCOUNT": STORAGE_ACCOUNT,
            "DETCLOUD_IAM_ENDPOINT": narrowed,
            "DETCLOUD_STS_ENDPOINT": narrowed,
            "DETCLOUD_NETWORK": "{}",
            "DETCLOUD_GC_URL": urls["checkpoint_gc"],
            "DETCLOUD_SUGGEST_URL": "http://127.0.0.1:9",
            "DETCLOUD_HOST": "127.0.0.1",
        }
        for name in FUNCTIONS:
            stack.enter_context(run_function(name, urls[name], folder, environment))
        for name, pattern in TRIGGER_PATTERNS.items():
            events.triggers[name] = Trigger(pattern, urls[name])
        table = FirestoreTable(firestore.client(database))
        cluster = CloudRunCluster(
            urls, token, events, table, gcs.url, narrowed, checkpoints, tokens, folder
        )
        stack.enter_context(_ticks(cluster))
        yield cluster


@contextmanager
def run_function(
    name: str,
    url: str,
    folder: Path,
    environment: Mapping[str, str],
    code: Sequence[Path] = (ROOT, ROOT / "harness"),
    options: Sequence[str] = ("-P",),
) -> Iterator[None]:
    """Serve a function at `url`, of the code in these folders, by Python with these options."""
    own = {
        "DETCLOUD_FUNCTION": name,
        "PYTHONPATH": ":".join(map(str, code)),
        "PORT": url.rpartition(":")[2],
    }
    line = [sys.executable, *options, "-m", "lambdas.gcp.serve"]
    with serving(line, url, folder / f"{name}.log", {**environment, **own}):
        yield


def _upload(gcs: FakeGcs, bucket: str, name: str, content: bytes) -> None:
    url = f"{gcs.url}/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}"
    request = urllib.request.Request(url, content, {"Content-Type": "text/plain"})
    urllib.request.urlopen(request, timeout=ANSWER_SECONDS_MAX).close()


def write_key(folder: Path, tokens: str) -> Path:
    """Write the key of a service account that signs URLs, which nobody here checks."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    text = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
    fields = {
        "type": "service_account",
        "project_id": PROJECT,
        "private_key_id": "1",
        "private_key": text,
        "client_email": ACCOUNT,
        "client_id": "1",
        "token_uri": f"http://{tokens}{TOKEN_PATH}",
    }
    path = folder / "key.json"
    path.write_text(json.dumps(fields))
    return path


@contextmanager
def _ticks(cluster: CloudRunCluster) -> Iterator[None]:
    stopped = threading.Event()

    def run() -> None:
        while not stopped.is_set():
            begun = time.monotonic()
            try:
                cluster.call("tick")
            except OSError as error:
                cluster.failures.append(str(error))
            stopped.wait(max(0.0, begun + TICK_SECONDS - time.monotonic()))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(CALL_SECONDS_MAX)
