"""What folds the event log into Postgres: recording, linking, evaluating, batching, and telling Kafka about it."""
