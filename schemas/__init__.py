"""The contract between Hindstream's rooms: events, topics, tables and recipes as data."""
