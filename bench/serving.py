"""An embedded cluster's server without an agent of its own: `python -m bench.serving HOME`.

What is measured is the process that ships: application, ticker, table and store. `served` starts
and ends it.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lambdas.home import HomeFolder
from lambdas.serving import HOST, EmbeddedServer, listening, log_to
from lambdas.ticker import Ticker
from lambdas.wiring import embedded

USER = "bench"
START_SECONDS_MAX = 30.0


@contextmanager
def served(home: HomeFolder) -> Iterator[str]:
    """The URL of a server on the folder. Raises RuntimeError if none comes up."""
    home.remove_record("server")
    command = [sys.executable, "-m", "bench.serving", str(home.folder)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield _url(home, process)
    finally:
        process.terminate()
        process.wait(timeout=20)


def main() -> int:
    """Serves until SIGTERM."""
    home = HomeFolder(Path(sys.argv[1]))
    log_to(home.folder / "server.log")
    listener = listening(None, "")
    home.checkpoints.mkdir(exist_ok=True)
    cluster = embedded(home, USER)
    ticker = Ticker(cluster.engine, cluster.collector)
    url = f"http://{HOST}:{listener.getsockname()[1]}"

    def started() -> None:
        ticker.start()
        home.write_record("server", {"url": url})

    EmbeddedServer(cluster.app, started, cluster.waiting.close).run(sockets=[listener])
    ticker.stop()
    cluster.table.close()
    return 0


def _url(home: HomeFolder, process: subprocess.Popen[bytes]) -> str:
    give_up_at = time.monotonic() + START_SECONDS_MAX
    while not (url := home.record("server").get("url")):
        if process.poll() is not None or time.monotonic() > give_up_at:
            raise RuntimeError("no server came up")
        time.sleep(0.02)
    return str(url)


if __name__ == "__main__":
    sys.exit(main())
