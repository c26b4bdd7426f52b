"""The upload of a file to HDFS in parts: separate files that HDFS joins.

A part is compared with the sent content before it gets its name, so every named part is complete.
Each part is a single block, and all except the last have the same size, since older namenodes only
join full blocks. CONCAT moves the blocks of many parts to the end of the first part's file. The
file's length always shows the number of joined parts, even after crashes and lost answers.
Appending is no alternative: a late datanode may append twice, and a dead writer keeps its lease and
leaves an unknown length.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from urllib.parse import quote

from detcloud.shared.bucket_errors import BucketError, PartsConflict
from detcloud.shared.file_parts import FilePart
from detcloud.shared.http import backoff_seconds
from detcloud.shared.upload_parts import PartSizes, check_stored_size
from detcloud.shared.webhdfs_client import ATTEMPTS_MAX, HdfsError
from detcloud.shared.webhdfs_paths import NOT_FOUND, HdfsPaths

_JOINED = "joined"
_PART = re.compile(r"part-([0-9]{5})(?:-[0-9a-f]{32})?")


class JoinRefused(BucketError):
    """HDFS refuses to join files in the folder."""


class HdfsParts:
    """The stored parts of a file, in a separate folder.

    Several threads and processes with the same file may use the parts at the same time. All methods
    may raise BucketError if HDFS refuses or, after the repeats of WebHdfsClient, does not answer. A
    joined file with a length of no number of parts is damaged. All methods except `store` then
    delete the folder of the parts and raise PartsConflict, so that the upload begins again.
    """

    def __init__(
        self, paths: HdfsPaths, folder: str, path: str, sizes: PartSizes, names_bytes_max: int
    ) -> None:
        """Create an object, without a request.

        `folder` is the folder of the parts, `path` is the path of the finished file. A request to
        join parts has names of at most `names_bytes_max` bytes, but at least one name.
        """
        self._paths = paths
        self._folder = folder
        self._path = path
        self._joined = f"{folder}/{_JOINED}"
        self._names_bytes_max = names_bytes_max
        self.sizes = sizes

    def stored_numbers(self) -> list[int]:
        """Return the sorted numbers, from 1, of the stored parts. All numbers if the file exists.

        Joined parts count as stored. Parts of a wrong size are left out. An existing file counts
        with any size. Each call asks HDFS.
        """
        if self._paths.status(self._path) is not None:
            return [*self.sizes.numbers]
        joined, parts = self._read_folder()
        return sorted({*range(1, joined + 1), *parts})

    def has(self, number: int, md5: str) -> bool:
        """Whether the part with this MD5, in hexadecimal, is stored or no longer needed.

        A part is no longer needed if it was joined or the file exists, whatever its MD5. Of several
        stored files of the number, only the newest counts.
        """
        if self._paths.status(self._path) is not None:
            return True
        joined, parts = self._read_folder()
        return number <= joined or parts.get(number) == f"part-{number:05}-{md5}"

    def store(self, number: int, part: FilePart, md5: str = "") -> None:
        """Store a part, and delete parts of the same number with another MD5.

        If a part of this number and `md5` is stored already, the stored part stays. Without an MD5,
        no other part is deleted. `md5` is only part of the name, and is not compared. A part of a
        wrong size is stored but never counts. A missing folder is created. The number, and whether
        the file exists already, are not checked. Raise BucketError if HDFS stored other content;
        the stored file is then deleted if possible.
        """
        name = f"part-{number:05}-{md5}" if md5 else f"part-{number:05}"
        staged = self._paths.write(self._folder, part, self.sizes.part_bytes)
        try:
            if not self._paths.rename(staged, f"{self._folder}/{name}"):
                # The same part was stored and compared before.
                self._paths.remove(staged)
        except BaseException:
            self._paths.discard(staged)
            raise
        if md5:
            for other in self._names(number) - {name}:
                self._paths.remove(f"{self._folder}/{other}")

    def join(self) -> bool:
        """Join the parts to the file, and delete the folder of the parts.

        Return True if this call created the file. Return False, and delete the folder as well, if
        the file exists already with the same size, so also for a second call. Raise PartsConflict
        if a part is missing, or if the stored file has another size. Raise JoinRefused if HDFS
        refuses to join. In these cases, the parts stay; some may be joined already. After another
        error of a step, repeat the step with a pause, and raise the error after ATTEMPTS_MAX
        failures. An error when the folder is deleted is ignored.
        """
        failures = 0
        while not self._is_stored():
            joined, parts = self._read_folder()
            missing = {*self.sizes.numbers} - {*range(1, joined + 1)} - parts.keys()
            if missing:
                if self._is_stored():
                    # Another process was faster, and has removed the folder.
                    break
                raise PartsConflict(f"part {min(missing)} of {self._path} is missing")
            try:
                if self._join_some(joined, parts):
                    self._paths.discard(self._folder, recursive=True)
                    return True
            except (JoinRefused, PartsConflict):
                raise
            except BucketError:
                # Another process may be joining the parts and have moved files. A lost answer has
                # the same effect.
                failures += 1
                if failures >= ATTEMPTS_MAX:
                    raise
                time.sleep(backoff_seconds(failures))
        self._paths.discard(self._folder, recursive=True)
        return False

    def _is_stored(self) -> bool:
        """Whether the file exists. Raise PartsConflict if the file has another size."""
        status = self._paths.status(self._path)
        if status is not None:
            check_stored_size(self._path, status.length, self.sizes.size)
        return status is not None

    def _join_some(self, joined: int, parts: Mapping[int, str]) -> bool:
        """Do the next step of the join. Return whether the step moved the file to its path.

        `joined` is the number of joined parts, `parts` are the names of the other parts by number.
        Return False also if another file has the path. Raise JoinRefused if HDFS refuses to join,
        and BucketError if another process has moved a part.
        """
        if joined == self.sizes.count:
            return self._paths.rename(self._joined, self._path)
        if not joined:
            self._paths.rename(f"{self._folder}/{parts[1]}", self._joined)
            return False
        names = (f"{self._folder}/{parts[number]}" for number in self.sizes.numbers[joined:])
        try:
            self._paths.client.concat(self._joined, [*_some_names(names, self._names_bytes_max)])
        except HdfsError as error:
            if error.kind == NOT_FOUND:
                raise
            raise JoinRefused(f"HDFS joins no parts there: {error}") from None
        return False

    def _read_folder(self) -> tuple[int, dict[int, str]]:
        """Return the number of joined parts, and the file names of other parts by number.

        Joined parts are always the first. Return 0 and no parts without a folder. Files of a wrong
        size are skipped. The newest file of a number counts. If the joined file has a length of no
        number of parts, delete the folder and raise PartsConflict.
        """
        joined, parts = 0, dict[int, str]()
        found = self._paths.entries(self._folder)
        for entry in sorted(found, key=lambda item: item.number):
            match = _PART.fullmatch(entry.name)
            if entry.name == _JOINED:
                joined = self._joined_count(entry.length)
            elif match and self._is_size_of(int(match[1]), entry.length):
                parts[int(match[1])] = entry.name
        return joined, parts

    def _joined_count(self, length: int) -> int:
        """Return the number of parts in a joined file of this length.

        If the length fits no number of parts, delete the folder and raise PartsConflict.
        """
        whole, rest = divmod(length, self.sizes.part_bytes)
        if length == self.sizes.size:
            return self.sizes.count
        if rest or not 0 < whole < self.sizes.count:
            self._paths.discard(self._folder, recursive=True)
            raise PartsConflict(f"{self._joined} has {length} bytes: upload {self._path} again")
        return whole

    def _is_size_of(self, number: int, length: int) -> bool:
        return number in self.sizes.numbers and length == self.sizes.size_of(number)

    def _names(self, number: int) -> set[str]:
        """Return the names of all files of a part, for any MD5 and of any size."""
        names = (entry.name for entry in self._paths.entries(self._folder))
        return {
            name for name in names if (match := _PART.fullmatch(name)) and int(match[1]) == number
        }


def _some_names(names: Iterator[str], bytes_max: int) -> Iterator[str]:
    """Yield the first names, as many as have `bytes_max` bytes, but at least one name.

    The bytes count as in a URL. Yield nothing without names.
    """
    room = bytes_max
    for name in names:
        length = len(quote(name, safe="")) + len("%2C")
        if length > room and room < bytes_max:
            return
        yield name
        room -= length
