"""Addresses of sources, and the checksums published beside them."""

from __future__ import annotations

import pytest

from seqlm.training.data import remotes
from seqlm.training.data.transfer import FetchError


def test_two_queries_are_two_addresses_and_a_new_signature_is_not() -> None:
    shown = remotes.shown_address
    for name in ("query", "search", "signal"):
        assert shown(f"https://e.org/s?{name}=a") != shown(f"https://e.org/s?{name}=b")
    assert shown("https://e.org/s?X-Amz-Date=1&q=a") == shown("https://e.org/s?X-Amz-Date=2&q=a")


def _blown_up(levels: int) -> bytes:
    """Build a document whose entities hold ten of the one before."""
    entities = '<!ENTITY e0 "aaaaaaaaaa">' + "".join(
        f'<!ENTITY e{level} "{f"&e{level - 1};" * 10}">' for level in range(1, levels)
    )
    return f"<!DOCTYPE m [{entities}]><m>&e{levels - 1};</m>".encode()


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b"<html>", "not a metalink"),
        (b'<metalink version="3.0"><files></files>', "not a metalink"),
        (_blown_up(9), "limit on input amplification factor"),
    ],
)
def test_a_metalink_that_is_none_is_refused(document: bytes, message: str) -> None:
    with pytest.raises(FetchError, match=message):
        remotes.parse_metalink(document, "https://example.org/RELEASE.metalink", "p.fasta")
