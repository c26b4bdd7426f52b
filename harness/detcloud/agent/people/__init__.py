"""The use of the machine by people at a desk, during which the machine takes no trials."""
