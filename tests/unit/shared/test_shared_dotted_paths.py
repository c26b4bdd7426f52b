import random
from collections.abc import Mapping

import pytest

from detcloud.shared.dotted_paths import (
    DottedPath,
    PathInvalid,
    join_names,
    resolve_path,
    split_assignment,
)


@pytest.mark.parametrize(
    ("text", "names", "value"),
    [
        ("a.b=1", ("a", "b"), "1"),
        (" a.my rate = 1", ("a", "my rate"), " 1"),
        ('a."b.c"=x=y', ("a", "b.c"), "x=y"),
        ("'b.c'.d=", ("b.c", "d"), ""),
        (r'"b\"=.c"=1', ('b"=.c',), "1"),
        ("a.it's=1", ("a", "it's"), "1"),
    ],
)
def test_splits_assignment(text: str, names: tuple[str, ...], value: str) -> None:
    path, rest = split_assignment(text)
    assert (path.names, rest) == (names, value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.b", "is not of the form"),
        ("", "is not of the form"),
        ("=1", "is not of the form"),
        ("a.=1", "is not of the form"),
        ("a. =1", "is not of the form"),
        ('a."b.c=1', "has a quote that does not end"),
        ('a."b"c=1', "has a quote that does not end"),
        (r'"\x"=1', "no JSON string"),
        ('""=1', "has an empty name"),
    ],
)
def test_refuses_malformed_assignments(text: str, message: str) -> None:
    with pytest.raises(PathInvalid, match=message):
        split_assignment(text)


def test_joined_names_are_parsed_as_identical_names() -> None:
    draws = random.Random(7)
    for _ in range(3_000):
        names = tuple(
            "".join(draws.choices("ab.=\"'\\[] \n\té\u202e", k=draws.randint(1, 5)))
            for _ in range(draws.randint(1, 4))
        )
        path, value = split_assignment(f"{join_names(names)}=v=w")
        assert (path.names, value) == (names, "v=w")


def test_plain_names_are_joined_without_quotes() -> None:
    assert (
        join_names(("hyperparameters", "n_layers-2", "größe")) == "hyperparameters.n_layers-2.größe"
    )
    assert join_names(("model.layers", "a b", "")) == '"model.layers"."a b".""'


def resolve(text: str, *trees: Mapping[str, object]) -> tuple[str, ...]:
    return resolve_path(split_assignment(f"{text}=1")[0], trees)


def test_names_without_quotes_mean_existing_key_with_dots() -> None:
    tree = {"h": {"a.b": {"c.d": 1}}}
    assert resolve("h.a.b.c.d", tree) == ("h", "a.b", "c.d")
    assert resolve("h.a.b.x", tree) == ("h", "a.b", "x")
    assert resolve("h.x.y", tree) == ("h", "x", "y")
    assert resolve("h.a.b", {}, tree) == ("h", "a.b")
    assert resolve('h."a".b', tree) == ("h", "a", "b")


def test_names_that_fit_several_keys_are_refused() -> None:
    with pytest.raises(PathInvalid, match=r'write a."b.c" or "a.b".c$'):
        resolve("a.b.c", {"a.b": {"c": 1}, "a": {"b.c": 1}}, {})


def test_path_of_many_names_is_resolved_quickly() -> None:
    names = ("a",) * 1_000
    path = DottedPath(names, (False,) * 1_000)
    assert resolve_path(path, [{"b": 1}]) == names
