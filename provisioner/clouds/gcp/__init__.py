"""The CloudProvider for Google Compute Engine, which launches instances by bulk inserts."""
