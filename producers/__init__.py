"""What writes the log: the gateway, importers, and simulated users."""
