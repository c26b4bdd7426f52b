"""Configurations of monitoring systems for the metrics of a cluster."""
