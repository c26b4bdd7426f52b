"""The names of a cluster's functions, which the image serves and the stack deploys."""

from typing import Final

FUNCTIONS: Final = ("api", "advance", "tick", "wake", "checkpoint_gc", "suggest")
# The relay of tunnels, which the image serves as well. The relay is no function: it uses no row,
# and answers only WebSockets.
RELAY: Final = "relay"
# The variable with the secret of tickets in base64, for the relay and the API.
RELAY_SECRET: Final = "DETCLOUD_RELAY_SECRET"
# Functions that run the code of another function, and therefore as its service account.
ACCOUNT_OF: Final = {"wake": "tick"}
# Functions with a service account of their own.
ACCOUNT_FUNCTIONS: Final = tuple(name for name in FUNCTIONS if name not in ACCOUNT_OF)
