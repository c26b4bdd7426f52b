import hashlib
from pathlib import Path

from detcloud.core.environment import code_digest


def test_code_digest_depends_on_names_and_contents(tmp_path: Path) -> None:
    (tmp_path / "b.py").write_text("B")
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "c.py").write_text("C")
    sha_b, sha_c = (hashlib.sha256(text).hexdigest() for text in (b"B", b"C"))
    # The files of a folder come before the subfolders.
    expected = hashlib.sha256(f"{sha_b}  b.py\n{sha_c}  a/c.py\n".encode()).hexdigest()
    assert code_digest(tmp_path) == expected


def test_code_digest_ignores_caches_hidden_files_and_links(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("x")
    before = code_digest(tmp_path)
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "model.cpython-311.pyc").write_text("y")
    (tmp_path / ".hidden").write_text("z")
    (tmp_path / "link").symlink_to("/etc/passwd")
    assert code_digest(tmp_path) == before
