"""The command line: one module a sub-command, loaded only when it is called."""
