"""Check of OpenSSH public keys."""

import re
from typing import NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

TYPES = (
    "ssh-ed25519",
    "ssh-rsa",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "sk-ssh-ed25519@openssh.com",
    "sk-ecdsa-sha2-nistp256@openssh.com",
)
"""Key types that sshd accepts."""

PATTERN = f"^({'|'.join(re.escape(kind) for kind in TYPES)}) [A-Za-z0-9+/]+=*( .*)?$"
"""Form of a public key, for editors; ``fault`` finds more mistakes."""

EXAMPLES = (
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIECUEU7Ahx3DrHmWkYzx2OMD01HUeidtLdDYocoglHKN ada@example.com",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICUmVynEXPKu1sHLx7WBnuTjvBkxGsKV+YvkW1iaXvuJ rosalind@example.com",
)
"""Example keys. Their private keys were discarded."""

# Header lines of PEM and PuTTY files. Without a header, the base64 of OpenSSH's own format begins with a
# name, and that of PEM with the number 0 or 1 (DER 02 01 0x) after one or two lengths.
_PRIVATE = re.compile(
    r"BEGIN[A-Z ]*PRIVATE KEY|PuTTY-User-Key|b3BlbnNzaC1rZXktdjE|\A\s*M[A-Za-z0-9+/]{2,7}(CAQ|AgE|IBA)"
)

_IS_WHOLE = "a key is one line with type, base64 and comment, as in the .pub file"
_COPY = "copy the whole line from the .pub file"


class Fault(NamedTuple):
    """Reason why a text is not a public key."""

    allowed: str
    """Allowed text, as in ``Violation``."""
    fix: str
    """Action that fixes the mistake."""


def fault(text: str) -> Fault | None:
    """Return the reason why ``text`` is not a public key, or None."""
    if is_private_key(text):
        return Fault(
            allowed="a private key never leaves its owner's machine",
            fix="set the public key from the .pub file, and create a new pair, because this one is exposed",
        )
    kind, _, rest = text.partition(" ")
    if kind not in TYPES:
        return _fault_of_type(text, kind)
    if not text.isprintable():
        return Fault(allowed=_IS_WHOLE, fix="set each key as a separate item on one line")
    key_without_comment = f"{kind} {rest.split(' ')[0]}"
    try:
        load_ssh_public_key(key_without_comment.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        wrong = (
            f"its base64 is truncated or altered, or belongs to another type than {kind} ({error})"
        )
        return Fault(allowed=f"{_IS_WHOLE}; {wrong}", fix=_COPY)
    return None


def _fault_of_type(text: str, kind: str) -> Fault:
    """Return the fault of a text that begins with ``kind``, which is not a type of a key."""
    has_type_later = any(re.search(rf"(^|[\s,]){re.escape(known)} ", text) for known in TYPES)
    if has_type_later:
        return Fault(
            allowed="a key begins with its type, without options or commands",
            fix="remove everything before the type",
        )
    if "/" in kind or kind.endswith(".pub"):
        return Fault(allowed="the key itself is required, not the path of its file", fix=_COPY)
    return Fault(
        allowed=f"types are {', '.join(TYPES)}",
        fix="set a key of one of these types, for example from `ssh-keygen -t ed25519`",
    )


def is_private_key(text: str) -> bool:
    """Return whether the text contains a private key, or a private key without its first line."""
    return bool(_PRIVATE.search(text))
