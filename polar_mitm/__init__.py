"""polar-mitm: see, record and train on what unmodified agent harnesses do with a model."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("polar-mitm")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+source"
