"""`python -m kvmill`."""

from .cli import main

main()
