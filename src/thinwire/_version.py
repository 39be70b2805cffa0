"""The version of the package, read by the build and by the run record."""

__version__ = "0.1.0"
