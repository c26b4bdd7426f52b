import hashlib
from pathlib import Path

from detcloud.core.environment import code_digest


def test_the_digest_follows_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "b.py").write_text("B")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "c.py").write_text("C")
    sha_b, sha_c = (hashlib.sha256(text).hexdigest() for text in (b"B", b"C"))
    # The files of a folder come before its subfolders.
    expected = hashlib.sha256(f"{sha_b}  b.py\n{sha_c}  a/c.py\n".encode()).hexdigest()
    assert code_digest(tmp_path) == expected


def test_running_the_code_leaves_its_digest(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("x")
    before = code_digest(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "model.cpython-311.pyc").write_text("y")
    (tmp_path / ".hidden").write_text("z")
    (tmp_path / "link").symlink_to("/etc/passwd")
    assert code_digest(tmp_path) == before
