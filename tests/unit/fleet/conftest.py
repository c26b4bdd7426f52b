from tests.unit.api.conftest import cluster

__all__ = ["cluster"]
