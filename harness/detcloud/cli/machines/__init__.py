"""Work on other machines through OpenSSH's client: the installation and the removal of agents."""
