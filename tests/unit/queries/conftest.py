from tests.unit.api.conftest import cluster, cluster_with_aws, cluster_with_local

__all__ = ["cluster", "cluster_with_aws", "cluster_with_local"]
