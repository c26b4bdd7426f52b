"""Webhooks: the deliveries of events to receivers outside the cluster."""
