"""The command line."""

from thinwire.cli.main import main

__all__ = ["main"]
