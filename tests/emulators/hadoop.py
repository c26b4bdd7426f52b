"""Hadoop's own HDFS on this machine: a namenode and a datanode, with WebHDFS.

`.ci/fetch-hadoop FOLDER` fetches their jars, and DETCLOUD_HADOOP names the folder.
"""

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.emulators.server import free_port, missing, require_program, serving
from tests.patience import PROCESS_SECONDS_MAX

ROOT = Path(__file__).parents[2]
FOLDER = ".venv-hadoop"
_SERVERS = "org.apache.hadoop.hdfs.server"
# Packages that classes of 2016 need from a newer Java.
_OPENED = (
    "java.base/java.lang",
    "java.base/java.lang.reflect",
    "java.base/java.util",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/sun.nio.ch",
    "java.security.jgss/sun.security.krb5",
)
_LOGGED = """log4j.rootLogger=WARN,console
log4j.appender.console=org.apache.log4j.ConsoleAppender
log4j.appender.console.target=System.err
log4j.appender.console.layout=org.apache.log4j.SimpleLayout
"""


@dataclass(frozen=True)
class Hadoop:
    """HDFS with a namenode at `url`, owned by `user`."""

    url: str
    user: str


@contextmanager
def hadoop(folder: Path) -> Iterator[Hadoop]:
    """Run a separate file system with data and logs in `folder`. Skip the test if Hadoop is
    missing.
    """
    java = require_program("java", remedy="HDFS is a program of Java's")
    libraries = Path(os.environ.get("DETCLOUD_HADOOP", ROOT / FOLDER)) / "lib"
    if not libraries.is_dir():
        missing("hadoop", f"there is no Hadoop in {libraries}; `.ci/fetch-hadoop` fetches it")
    address = f"127.0.0.1:{free_port()}"
    _write_configuration(folder, address)
    command: list[str | Path] = [java, *_java_options(folder, libraries)]
    namenode = [*command, f"{_SERVERS}.namenode.NameNode"]
    datanode = [*command, f"{_SERVERS}.datanode.DataNode"]
    own = {"HADOOP_USER_NAME": "owner", "HADOOP_HOME": str(folder)}
    subprocess.run(
        [*namenode, "-format", "-force"],
        env={**os.environ, **own},
        check=True,
        capture_output=True,
        timeout=PROCESS_SECONDS_MAX,
    )
    status = f"http://{address}/webhdfs/v1/?op=LISTSTATUS"
    nodes = f"http://{address}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
    with (
        serving(namenode, status, folder / "namenode.log", own),
        serving(datanode, lambda: _has_datanode(nodes), folder / "datanode.log", own),
    ):
        yield Hadoop(f"http://{address}", "owner")


def _has_datanode(url: str) -> None:
    """Raise OSError unless the namenode knows a datanode. Without a datanode the namenode stores
    nothing.
    """
    import json
    import urllib.request

    with urllib.request.urlopen(url) as answer:
        (state,) = json.loads(answer.read())["beans"]
    if not state["NumLiveDataNodes"]:
        raise OSError("no datanode yet")


def _java_options(folder: Path, libraries: Path) -> list[str]:
    classes = [folder / "conf", folder / "web", libraries / "*"]
    opened = [option for name in _OPENED for option in ("--add-opens", f"{name}=ALL-UNNAMED")]
    exported = ["--add-exports", f"{_OPENED[-1]}=ALL-UNNAMED"]
    return ["-Xmx256m", *opened, *exported, "-cp", ":".join(map(str, classes))]


def _write_configuration(folder: Path, address: str) -> None:
    for place in ("conf", *(f"web/webapps/{word}/WEB-INF" for word in ("hdfs", "datanode"))):
        (folder / place).mkdir(parents=True)
    for name in ("hdfs", "datanode"):
        (folder / f"web/webapps/{name}/WEB-INF/web.xml").write_text("<web-app></web-app>\n")
    (folder / "conf/log4j.properties").write_text(_LOGGED)
    names = {"fs.defaultFS": f"hdfs://127.0.0.1:{free_port()}", "hadoop.tmp.dir": str(folder)}
    nodes = {
        "dfs.namenode.http-address": address,
        "dfs.namenode.name.dir": str(folder / "names"),
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        "dfs.namenode.safemode.extension": "0",
        "dfs.datanode.data.dir": str(folder / "data"),
        "dfs.datanode.hostname": "127.0.0.1",
        "dfs.datanode.address": f"127.0.0.1:{free_port()}",
        "dfs.datanode.http.address": f"127.0.0.1:{free_port()}",
        "dfs.datanode.ipc.address": f"127.0.0.1:{free_port()}",
        "dfs.replication": "1",
    }
    _write_settings(folder / "conf/core-site.xml", names)
    _write_settings(folder / "conf/hdfs-site.xml", nodes)


def _write_settings(place: Path, settings: Mapping[str, str]) -> None:
    rows = (
        f"<property><name>{name}</name><value>{value}</value></property>"
        for name, value in settings.items()
    )
    place.write_text("<configuration>" + "\n".join(rows) + "</configuration>\n")
