"""The machines of a simulated cluster: cloud, agents, and processes of trials."""
