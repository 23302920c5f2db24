"""`python -m qualab`."""

from qualab.cli.main import main

main()
