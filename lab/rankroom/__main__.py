"""`python -m rankroom`."""

from rankroom.cli import main

main(prog_name="rankroom")
