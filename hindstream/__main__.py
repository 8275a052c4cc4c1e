"""`python -m hindstream`: the command line without the installed script."""

from hindstream.cli.main import app

app()
