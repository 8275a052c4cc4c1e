"""Replays as a person starts them: from the topic or from files, with a screen, down to new weights."""
