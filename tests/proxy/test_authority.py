"""The certificate authority: one, whole, whoever makes it."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mitmproxy.certs import CertStore

from polar_mitm.proxy.authority import KEY, KEY_BITS, NAME, make_authority


def test_proxies_that_start_at_once_have_one_authority(tmp_path: Path) -> None:
    def made(_: int) -> bytes:
        make_authority(tmp_path)
        return (tmp_path / KEY).read_bytes()

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(made, range(4)))) == 1
    assert CertStore.from_store(tmp_path, NAME, KEY_BITS).default_ca
    assert not list(tmp_path.glob(".new-*"))


def test_a_key_that_was_never_written_whole_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / KEY).touch()
    make_authority(tmp_path)
    first = (tmp_path / KEY).read_bytes()
    assert CertStore.from_store(tmp_path, NAME, KEY_BITS).default_ca
    make_authority(tmp_path)
    assert (tmp_path / KEY).read_bytes() == first, "one that is there stays"
