import pytest

from control_plane.objects.store import InvalidKey, ObjectKey


@pytest.mark.parametrize(
    "text",
    [
        "model-code",
        "model-code/" + "a" * 64,
        "checkpoints/1/2/1/5f0c/.metadata",
        "checkpoints/1/2/1/5f0c/a file, with: signs+=@~.pt",
        "checkpoints/1/2/1/5f0c/gewöhnlich/模型.bin",
        "logs/..." + "/a..b",
        "a/" + "b" * 255,
    ],
)
def test_accepts_plain_paths_as_keys(text: str) -> None:
    assert str(ObjectKey(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "model-code/",
        "/model-code/x",
        "//host/share",
        "C:/windows",
        "../etc/passwd",
        ".partial/x",
        "a/../b",
        "a/./b",
        "a//b",
        "a/b/",
        "a/..\\b",
        "a\\..\\..\\b",
        "\\\\host\\share/x",
        "a/%2e%2e/b",
        "a/%252e%252e/b",
        "a/..;/b",
        "a/b;x=1",
        "a/b\0",
        "a/b\n",
        "a/\x1b[2J",
        "a/\u202egnp.exe",
        "a/\u200b..",
        "a/\udc80",
        "A/b",
        "-a/b",
        "a/" + "b" * 256,
        "a/" + "é" * 128,  # 256 bytes
        "a" + "/bbbbbbb" * 128,  # 1 + 8 * 128 = 1,025 bytes
    ],
)
def test_rejects_hostile_keys(text: str) -> None:
    with pytest.raises(InvalidKey, match="object key"):
        ObjectKey(text)


def test_key_has_parts_namespace_and_name() -> None:
    key = ObjectKey("checkpoints/1") / "model.pt"
    assert key == ObjectKey("checkpoints/1/model.pt")
    assert (key.namespace, key.name) == ("checkpoints", "model.pt")
    assert key.parts == ("checkpoints", "1", "model.pt")


def test_key_cannot_be_joined_with_dots() -> None:
    with pytest.raises(InvalidKey):
        ObjectKey("checkpoints/1") / ".."
