"""The partitions of agents' tokens.

It is a module of its own so that the check of a token does not import the agent actor.
"""

TOKENS = "tokens"
"""The partition of tokens. The sort key is the token's digest."""
TOKEN_HOLDERS = "token-holders"
"""The partition of agents with a token, by name. A row has the token's digest and epoch."""
