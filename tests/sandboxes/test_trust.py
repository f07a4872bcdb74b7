"""The CA bundle."""

from pathlib import Path

import pytest

from polar_mitm.sandboxes import trust


@pytest.fixture
def roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ca_pem: bytes) -> Path:
    """Stands for the system's bundle, with comments as some distributions have them."""
    path = tmp_path / "roots.pem"
    path.write_text("# A root\n" + ca_pem.decode() + "# Another\n" + ca_pem.decode())
    monkeypatch.setattr(trust, "system_bundle", lambda: path)
    return path


def test_the_bundle_lies_beside_the_ca_and_holds_the_roots_and_then_the_ca(ca: Path, roots: Path) -> None:
    bundle = trust.write_bundle(ca)
    assert bundle == trust.bundle_path(ca) == ca.with_name("ca-bundle.pem")
    assert bundle.read_bytes() == ca.read_bytes() * 3
    assert bundle.stat().st_mode & 0o777 == 0o644


def test_a_bundle_that_is_right_is_left_alone_and_a_changed_ca_renews_it(ca: Path, roots: Path) -> None:
    first = trust.write_bundle(ca).stat()
    assert trust.write_bundle(ca).stat().st_ino == first.st_ino
    ca.write_text(ca.read_text() + ca.read_text())
    assert trust.write_bundle(ca).stat().st_ino != first.st_ino
    assert trust.write_bundle(ca).read_text().count("BEGIN CERTIFICATE") == 4


def test_a_system_without_roots_gives_a_bundle_of_the_ca_alone(ca: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "system_bundle", lambda: None)
    assert trust.write_bundle(ca).read_bytes() == ca.read_bytes()


@pytest.mark.parametrize(
    ("text", "why"),
    [("-----BEGIN RSA PRIVATE KEY-----\nx", "holds a private key"), ("hello", "holds no PEM certificate")],
)
def test_a_file_that_is_no_certificate_or_more_than_one_is_refused(ca: Path, text: str, why: str) -> None:
    ca.write_text(text)
    with pytest.raises(ValueError, match=why):
        trust.write_bundle(ca)
    assert not trust.bundle_path(ca).exists()
