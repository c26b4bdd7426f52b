"""The actors: pure state machines that fold messages into state and effects."""
