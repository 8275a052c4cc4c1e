"""An OpenAI-compatible server before the policy's: it serves, and records every turn with its exact tokens."""
