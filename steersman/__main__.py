"""`python -m steersman`."""

from steersman.cli import main

main()
