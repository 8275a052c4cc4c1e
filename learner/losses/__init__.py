"""One loss a file, each a pure function of log-probs, advantages and a mask."""
