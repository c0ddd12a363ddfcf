"""OpenSSH public keys: what is wrong with a line that should be one."""

from __future__ import annotations

import base64
import binascii
import re
from typing import NamedTuple

NUM_PARTS = {
    "ssh-ed25519": 2,
    "ssh-rsa": 3,
    "ecdsa-sha2-nistp256": 3,
    "ecdsa-sha2-nistp384": 3,
    "ecdsa-sha2-nistp521": 3,
    "sk-ssh-ed25519@openssh.com": 3,
    "sk-ecdsa-sha2-nistp256@openssh.com": 4,
}
"""Of each type that sshd takes: how many strings its base64 holds, the type's own name first (RFC 4253, 5656,
8709; OpenSSH's PROTOCOL.u2f)."""

PATTERN = f"^({'|'.join(re.escape(kind) for kind in NUM_PARTS)}) [A-Za-z0-9+/]+=*( .*)?$"
"""For editors; ``fault`` finds more."""

EXAMPLES = (
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIECUEU7Ahx3DrHmWkYzx2OMD01HUeidtLdDYocoglHKN ada@example.com",
    "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAICUmVynEXPKu1sHLx7WBnuTjvBkxGsKV+YvkW1iaXvuJ rosalind@example.com",
)
"""Of pairs whose private half nobody has."""

# Heads of PEM and PuTTY files. Without a head, the base64 of OpenSSH's own format begins with a name, and
# that of PEM's with the number 0 or 1 (DER 02 01 0x) behind a length or two.
_PRIVATE = re.compile(
    r"BEGIN[A-Z ]*PRIVATE KEY|PuTTY-User-Key|b3BlbnNzaC1rZXktdjE|\A\s*M[A-Za-z0-9+/]{2,7}(CAQ|AgE|IBA)"
)

_NUM_BYTES_ED25519 = 32
_LENGTH_BYTES = 4
_IS_WHOLE = "it is one line of type, base64 and comment, as the file ending in .pub has it"
_COPY = "copy the whole line from the file ending in .pub"


class Fault(NamedTuple):
    allowed: str
    fix: str


def fault(text: str) -> Fault | None:
    """What makes ``text`` no public key, or None."""
    if is_private_key(text):
        return Fault(
            "a private key never leaves its owner's machine",
            "set the public one, of the file ending in .pub, and make a new pair: this one has been seen",
        )
    kind, _, rest = text.partition(" ")
    if kind not in NUM_PARTS:
        if any(re.search(rf"(^|[\s,]){re.escape(known_kind)} ", text) for known_kind in NUM_PARTS):
            return Fault(
                "nothing stands before a key's type: no options, no command", "set the key from its type on"
            )
        if "/" in kind or kind.endswith(".pub"):
            return Fault("the key itself is written here, not its file", _COPY)
        return Fault(
            f"types are {', '.join(NUM_PARTS)}",
            "set a key of one of these types, as `ssh-keygen -t ed25519` makes it",
        )
    if not text.isprintable():
        return Fault(_IS_WHOLE, "set each key as an item of its own, on one line")
    parts = _parts(rest.split(" ")[0])
    if not parts or not all(parts):
        return Fault(f"{_IS_WHOLE}; this one's base64 is cut off or altered", _COPY)
    if parts[0] != kind.encode():
        return Fault(f"{_IS_WHOLE}; this one's base64 is of another type than {kind}", _COPY)
    if len(parts) != NUM_PARTS[kind]:
        return Fault(f"{_IS_WHOLE}; this one's base64 is cut off or altered", _COPY)
    if "ed25519" in kind and len(parts[1]) != _NUM_BYTES_ED25519:
        return Fault(f"{_IS_WHOLE}; an Ed25519 key has {_NUM_BYTES_ED25519} bytes", _COPY)
    return None


def is_private_key(text: str) -> bool:
    """Whether the text holds a private key, or what is left of one without its first line."""
    return bool(_PRIVATE.search(text))


def _parts(encoded: str) -> list[bytes] | None:
    """The strings that base64 text holds, each behind its length; None if they do not fill it."""
    try:
        blob = base64.b64decode(encoded, validate=True)
    except binascii.Error:
        return None
    parts = []
    while blob:
        end = _LENGTH_BYTES + int.from_bytes(blob[:_LENGTH_BYTES])
        if len(blob) < end:
            return None
        parts.append(blob[_LENGTH_BYTES:end])
        blob = blob[end:]
    return parts
