"""What a run is doing, read from SQL and shown as a table that refreshes itself."""
