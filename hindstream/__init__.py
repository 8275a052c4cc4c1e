"""Settings, command line, local stack (broker, Postgres, model server) and dashboard: the room that knows all
others."""
