"""The partitions of tokens, apart from the actor: checking a token needs nothing else of it."""

# Tokens by their digest, and the agents that hold one by name, each with its digest and epoch.
TOKENS = "tokens"
TOKEN_HOLDERS = "token-holders"
