"""The neutral ground of server, client, agent and trial: formats, transports and their errors."""
