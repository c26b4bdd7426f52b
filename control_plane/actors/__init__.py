"""The actors: pure state machines. A step turns a message into a new state and effects."""
