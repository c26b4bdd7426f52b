"""The cluster of a function on AWS."""

from lambdas.aws.adapters import AwsAdapters
from lambdas.builder import Cluster

adapters = AwsAdapters()
cluster = Cluster(adapters)
