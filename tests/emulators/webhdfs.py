"""HDFS in this process with the WebHDFS protocol: namenodes, of which one is active, and datanodes.

The answers are those of Hadoop 2.7, which a nightly test compares. Tests can inject failures.
"""

import json
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

OWNER = "owner"
# Hadoop's default.
BLOCK_BYTES = 128 << 20
BLOCK_BYTES_MIN = 1 << 20
_ROOT = "/webhdfs/v1"


class Refusal(Exception):
    """An error answer of HDFS: status and kind of the exception."""

    def __init__(self, status: int, kind: str, message: str) -> None:
        super().__init__(message)
        self.status, self.kind = status, kind


@dataclass
class FileSystem:
    """Contents by path, None for a folder, with the number and the block size of each file."""

    contents: dict[str, bytes | None] = field(default_factory=lambda: {"/": None})
    numbers: dict[str, int] = field(default_factory=lambda: {"/": 1})
    block_bytes: dict[int, int] = field(default_factory=dict)
    encrypted: bool = False
    """Whether all of it is an encryption zone."""
    lock: threading.RLock = field(default_factory=threading.RLock)

    def make_folder(self, path: str) -> None:
        if any(":" in part for part in path.split("/")):
            raise Refusal(400, "InvalidPathException", f"Invalid path name {path}")
        if path not in self.contents:
            if path != "/":
                self.make_folder(_parent(path))
            self._add(path, None)

    def write(
        self,
        path: str,
        content: bytes,
        user: str,
        *,
        overwrite: bool,
        block_bytes: int = BLOCK_BYTES,
    ) -> None:
        if block_bytes < BLOCK_BYTES_MIN:
            raise Refusal(403, "IOException", f"Specified block size {block_bytes} is too small")
        if user != OWNER:
            raise Refusal(403, "AccessControlException", f"Permission denied: user={user}")
        if path in self.contents and not overwrite:
            raise Refusal(403, "FileAlreadyExistsException", f"{path} already exists\n\tat a.b.C")
        self.make_folder(_parent(path))
        self._add(path, content)
        self.block_bytes[self.numbers[path]] = block_bytes

    def concat(self, path: str, sources: list[str]) -> None:
        if self.encrypted:
            raise Refusal(400, "HadoopIllegalArgumentException", "concat can not be called there")
        target = self._file(path)
        joined = target
        for source in sources:
            content = self._file(source)
            if _parent(source) != _parent(path):
                text = f"Source file {source} is not in the same directory with the target"
                raise Refusal(400, "HadoopIllegalArgumentException", text)
            larger = self.block_bytes[self.numbers[source]] > self.block_bytes[self.numbers[path]]
            if source == path or not content or larger:
                raise Refusal(400, "HadoopIllegalArgumentException", f"concat: {source} is invalid")
            joined += content
        if len(set(sources)) < len(sources):
            raise Refusal(400, "HadoopIllegalArgumentException", "two of the files are the same")
        self.contents[path] = joined
        for source in sources:
            del self.contents[source]

    def _file(self, path: str) -> bytes:
        content = self.contents.get(path)
        if content is None:
            raise Refusal(404, "FileNotFoundException", f"File does not exist: {path}")
        return content

    def rename(self, path: str, destination: str) -> bool:
        if self.contents.get(destination, b"") is None:
            destination = f"{destination.rstrip('/')}/{path.rpartition('/')[2]}"
        parent_is_folder = self.contents.get(_parent(destination), b"") is None
        if path not in self.contents or destination in self.contents or not parent_is_folder:
            return False
        for moved in self._paths_below(path):
            name = destination + moved.removeprefix(path)
            self.contents[name], self.numbers[name] = self.contents.pop(moved), self.numbers[moved]
        return True

    def delete(self, path: str, *, recursive: bool) -> bool:
        below = self._paths_below(path)
        if len(below) > 1 and not recursive:
            raise Refusal(
                403, "PathIsNotEmptyDirectoryException", f"`{path} is non empty': not empty"
            )
        for path_below in below:
            del self.contents[path_below]
        return bool(below)

    def status(self, path: str, name: str = "") -> dict[str, Any]:
        if path not in self.contents:
            raise Refusal(404, "FileNotFoundException", f"File does not exist: {path}")
        content = self.contents[path]
        kind, length = ("DIRECTORY", 0) if content is None else ("FILE", len(content))
        status = {"pathSuffix": name, "type": kind, "length": length, "fileId": self.numbers[path]}
        return {**status, "encBit": True} if self.encrypted else status

    def entries(self, path: str) -> list[dict[str, Any]]:
        own = self.status(path)
        if own["type"] == "FILE":
            return [own]
        inside = sorted(
            content for content in self.contents if content != "/" and _parent(content) == path
        )
        return [self.status(name, name.rpartition("/")[2]) for name in inside]

    def _add(self, path: str, content: bytes | None) -> None:
        self.contents[path], self.numbers[path] = content, max(self.numbers.values()) + 1

    def _paths_below(self, path: str) -> list[str]:
        return sorted(
            content
            for content in self.contents
            if content == path or content.startswith(f"{path}/")
        )


@dataclass
class WebHdfs:
    """The running servers and the next failures."""

    files: FileSystem = field(default_factory=FileSystem)
    namenodes: list[str] = field(default_factory=list)
    datanodes: list[str] = field(default_factory=list)
    active: int = 0
    """Which of the namenodes is no standby."""
    standby_requests: int = 0
    """The number of requests that standby namenodes have refused."""
    broken_datanodes: int = 0
    """So many datanodes close connections without an answer, the first ones."""
    lost_answers: list[str] = field(default_factory=list)
    """Operations whose next answer is lost once it is done."""
    cut_answers: int = 0
    """So many contents end after their first half."""
    late_writes: int = 0
    """So many files are written after the connection of their sender has ended without an answer,
    before the next file is renamed.
    """
    waiting_writes: list[Callable[[], None]] = field(default_factory=list)
    cut_metadata: int = 0
    """So many answers of the active namenode end after their first half."""
    other_answers: list[bytes] = field(default_factory=list)
    """What something between answers in place of the active namenode, one after the other."""
    busy_answers: int = 0
    """So many requests at the active namenode are refused, for it has too many."""
    garbled_files: int = 0
    """So many files are stored otherwise than they were sent."""
    before: dict[str, Callable[[], None]] = field(default_factory=dict)
    """Functions by operation. The active namenode calls and drops an operation's function before it
    answers the next request.
    """
    asked: list[tuple[str, str]] = field(default_factory=list)
    """Each request at a namenode: its operation and path."""

    @property
    def url(self) -> str:
        return ";".join(self.namenodes)


@contextmanager
def webhdfs(namenodes: int = 2, datanodes: int = 2) -> Iterator[WebHdfs]:
    """Serve a separate file system with namenodes and datanodes."""
    hdfs = WebHdfs()
    with ExitStack() as stack:
        for count, kind, urls in (
            (namenodes, _NameNode, hdfs.namenodes),
            (datanodes, _DataNode, hdfs.datanodes),
        ):
            for number in range(count):
                handler = type("Handler", (kind,), {"hdfs": hdfs, "number": number})
                server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
                server.daemon_threads = True
                urls.append(f"http://127.0.0.1:{server.server_port}")
                thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
                thread.start()
                stack.callback(server.server_close)
                stack.callback(server.shutdown)
        yield hdfs


class _Node(BaseHTTPRequestHandler):
    hdfs: WebHdfs
    number: int

    def handle_request(self) -> None:
        place = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(place.query).items()}
        path = unquote(place.path.removeprefix(_ROOT)).rstrip("/") or "/"
        operation = query["op"].upper()
        self.prepare(operation)
        try:
            with self.hdfs.files.lock:
                self.answer(path, operation, query)
        except Refusal as refusal:
            error = {"exception": refusal.kind, "javaClassName": "x", "message": str(refusal)}
            self.send(refusal.status, json.dumps({"RemoteException": error}).encode())

    do_GET = do_PUT = do_POST = do_DELETE = handle_request

    def prepare(self, operation: str) -> None:
        """Do something before a request is answered, while other requests may be answered."""

    @abstractmethod
    def answer(self, path: str, operation: str, query: dict[str, str]) -> None:
        """Answer a request or raise a Refusal."""

    def send(self, status: int, content: bytes = b"", location: str = "", cut: int = 0) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content) + cut))
        if location:
            self.send_header("Location", location)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


class _NameNode(_Node):
    def prepare(self, operation: str) -> None:
        if self.number == self.hdfs.active and operation in self.hdfs.before:
            self.hdfs.before.pop(operation)()

    def answer(self, path: str, operation: str, query: dict[str, str]) -> None:
        hdfs = self.hdfs
        if self.number != hdfs.active:
            hdfs.standby_requests += 1
            raise Refusal(403, "StandbyException", "Operation category READ is not supported")
        if hdfs.busy_answers:
            hdfs.busy_answers -= 1
            raise Refusal(503, "RetriableException", "Server too busy")
        hdfs.asked.append((operation, path))
        if hdfs.other_answers:
            self.send(200, hdfs.other_answers.pop(0))
            return
        if operation == "RENAME":
            while hdfs.waiting_writes:
                hdfs.waiting_writes.pop()()
        answered = self._result(path, operation, query)
        if operation in hdfs.lost_answers:
            hdfs.lost_answers.remove(operation)
            return
        if operation == "CONCAT":
            self.send(200)
        elif answered is None:
            excluded = query.get("excludedatanodes", "").split(",")
            urls = [
                datanode for datanode in hdfs.datanodes if urlsplit(datanode).netloc not in excluded
            ]
            if not urls:
                raise Refusal(403, "IOException", "Failed to find datanode")
            # Hadoop does not escape a path that is already escaped.
            location = f"{urls[0]}{_ROOT}{quote(path)}?{urlsplit(self.path).query}"
            self.send(307, location=location)
        else:
            content = json.dumps(answered).encode()
            half = len(content) // 2 if hdfs.cut_metadata else 0
            hdfs.cut_metadata = max(hdfs.cut_metadata - 1, 0)
            self.send(200, content[: len(content) - half], cut=half)

    def _result(self, path: str, operation: str, query: dict[str, str]) -> Any:
        files = self.hdfs.files
        match operation:
            case "MKDIRS":
                files.make_folder(path)
                return {"boolean": True}
            case "RENAME":
                return {"boolean": files.rename(path, query["destination"])}
            case "DELETE":
                return {"boolean": files.delete(path, recursive=query["recursive"] == "true")}
            case "GETFILESTATUS":
                return {"FileStatus": files.status(path)}
            case "LISTSTATUS":
                return {"FileStatuses": {"FileStatus": files.entries(path)}}
            case "CONCAT":
                if "sources" not in query:
                    raise Refusal(400, "IllegalArgumentException", "No sources given")
                files.concat(path, query["sources"].split(","))
            case "OPEN":
                length, start = files.status(path)["length"], int(query.get("offset", 0))
                if length and start >= length:
                    raise Refusal(403, "IOException", f"Offset={start} out of the range")
        return None


class _DataNode(_Node):
    def answer(self, path: str, operation: str, query: dict[str, str]) -> None:
        hdfs = self.hdfs
        if self.number < hdfs.broken_datanodes:
            return
        # Hadoop unescapes a path twice.
        path = unquote(path)
        if operation == "CREATE":
            content = self.rfile.read(int(self.headers["Content-Length"]))
            if hdfs.garbled_files:
                hdfs.garbled_files -= 1
                content = content[:-1] + b"?"
            overwrite = query.get("overwrite") == "true"
            user = query.get("user.name", "stranger")
            block_bytes = int(query.get("blocksize", BLOCK_BYTES))
            write = partial(hdfs.files.write, overwrite=overwrite, block_bytes=block_bytes)
            if hdfs.late_writes:
                hdfs.late_writes -= 1
                hdfs.waiting_writes.append(partial(write, path, content, user))
                return
            write(path, content, user)
            self.send(201)
            return
        whole = hdfs.files.contents[path] or b""
        start = int(query.get("offset", 0))
        content = whole[start : start + int(query.get("length", len(whole)))]
        if hdfs.cut_answers:
            hdfs.cut_answers -= 1
            half = len(content) // 2
            self.send(200, content[:half], cut=len(content) - half)
        else:
            self.send(200, content)


def _parent(path: str) -> str:
    return path.rpartition("/")[0] or "/"
