"""The id of an agent's work directory."""

from pathlib import Path

from detcloud.agent.installation import read_installation


def test_id_stays_the_same_in_a_work_directory(tmp_path: Path) -> None:
    first = read_installation(tmp_path)
    assert len(first) == 32
    assert read_installation(tmp_path) == first


def test_work_directories_have_different_ids(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    assert len({read_installation(folder) for folder in folders}) == 2


def test_damaged_file_is_replaced(tmp_path: Path) -> None:
    for content in ("", "[]", '{"id": "../x"}', '{"id": 7}'):
        (tmp_path / "installation.json").write_text(content)
        created = read_installation(tmp_path)
        assert len(created) == 32
        assert read_installation(tmp_path) == created


def test_unwritable_folder_gives_no_id(tmp_path: Path) -> None:
    assert read_installation(tmp_path / "missing") == ""
