"""The fixtures of the sandboxes' tests."""

from tests.sandboxes.conftest import ca, ca_pem

__all__ = ["ca", "ca_pem"]
