"""Two runs side by side: the same turns under two recipes."""
