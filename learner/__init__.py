"""Micro-batches become weight versions. The math (advantages, losses, steps) knows nothing of Kafka or SQL."""
