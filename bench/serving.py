"""An embedded cluster's server without an agent: `python -m bench.serving HOME`.

Measured is the real process with application, tick thread, table and store. `serve_home` starts and
stops the process.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from local_cluster.embedded_cluster import build_embedded_cluster
from local_cluster.home import HomeFolder
from local_cluster.http_server import HOST, EmbeddedServer, configure_logging, open_listener
from local_cluster.tick_thread import TickThread

USER = "bench"
START_SECONDS_MAX = 30.0


@contextmanager
def serve_home(home: HomeFolder) -> Iterator[str]:
    """Run a server on the folder and yield its URL. Raise RuntimeError if the server does not
    start.
    """
    home.remove_record("server")
    command = [sys.executable, "-m", "bench.serving", str(home.folder)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield _url(home, process)
    finally:
        process.terminate()
        process.wait(timeout=20)


def main() -> int:
    """Serve until SIGTERM."""
    home = HomeFolder(Path(sys.argv[1]))
    configure_logging(home.folder / "server.log")
    listener = open_listener(0)
    home.checkpoints.mkdir(exist_ok=True)
    cluster = build_embedded_cluster(home, USER)
    ticker = TickThread(
        cluster.cluster.engine,
        cluster.cluster.collector,
        cluster.cluster.check_alarms,
        cluster.mark.advance,
        cluster.cluster.export_telemetry,
    )
    url = f"http://{HOST}:{listener.getsockname()[1]}"

    def announce() -> None:
        ticker.start()
        home.write_record("server", {"url": url, "pid": os.getpid()})

    EmbeddedServer(cluster.app, announce, cluster.adapters.long_polls.end_all).run(
        sockets=[listener]
    )
    ticker.stop()
    cluster.table.close()
    return 0


def _url(home: HomeFolder, process: subprocess.Popen[bytes]) -> str:
    give_up_at = time.monotonic() + START_SECONDS_MAX
    while not (url := home.read_record("server").get("url")):
        if process.poll() is not None or time.monotonic() > give_up_at:
            raise RuntimeError("no server came up")
        time.sleep(0.02)
    return str(url)


if __name__ == "__main__":
    sys.exit(main())
