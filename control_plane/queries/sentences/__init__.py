"""Sentences for the messages in an experiment's history, a module per receiver of messages."""
