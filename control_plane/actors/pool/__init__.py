"""The resource pool actor: owns its agents, the jobs that ask for slots, and who runs where."""
