"""One advantage a file: what each token of a response is credited with."""
