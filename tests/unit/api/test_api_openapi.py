"""The OpenAPI document names schemas like classes, and docs/api.md lists all routes."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.unit.api.cluster import Cluster


def test_schemas_have_the_names_of_classes(cluster: Cluster) -> None:
    schemas = cluster.get("/openapi.json").json["components"]["schemas"]
    assert {"CallerIdentity", "PostAnswer", "TokenBody"} <= set(schemas)
    # For two classes with the same name, FastAPI would prefix the names with module paths.
    assert not [name for name in schemas if "__" in name]


def test_schema_references_exist(cluster: Cluster) -> None:
    answer = cluster.get("/openapi.json")
    schemas = answer.json["components"]["schemas"]
    references = {
        part.partition('"')[0] for part in answer.body.decode().split("#/components/schemas/")[1:]
    }
    assert references
    assert references <= set(schemas)


REFERENCE = Path(__file__).resolve().parents[3] / "docs" / "api.md"
# `GET /jobs/{job}`, with further endings of the same path behind a comma: `/enable`, `/disable`.
ROUTES = re.compile(r"`(GET|POST|PUT|PATCH|DELETE) (/[^` ?]*)[^`]*`((?:, `/[a-z]+`)*)")


def test_api_reference_lists_all_routes(cluster: Cluster) -> None:
    paths = cluster.get("/openapi.json").json["paths"]
    routes = {
        (method.upper(), _anonymous(path.removeprefix("/api/v1")))
        for path, methods in paths.items()
        for method in methods.keys() & {"get", "post", "put", "patch", "delete"}
    }
    described = {route for route in _described_routes() if not route[1].startswith("/ui")}
    assert len(routes) > 80
    missing, unknown = routes - described, described - routes
    assert not missing, f"add {missing} to docs/api.md, as `GET /path`"
    assert not unknown, f"remove {unknown} from docs/api.md: the API has no such route"


def _described_routes() -> Iterator[tuple[str, str]]:
    for method, path, endings in ROUTES.findall(REFERENCE.read_text(encoding="utf-8")):
        yield method, _anonymous(path)
        for ending in re.findall(r"/[a-z]+", endings):
            yield method, _anonymous(path.rpartition("/")[0] + ending)


def _anonymous(path: str) -> str:
    return re.sub(r"\{[^}]*\}", "{}", path)
