"""Whether PAM lets a user in: pam_account.py SERVICE USER. Prints PAM's answer, ends with its number.

Only the account rules are asked, as sshd does after it has accepted a key; nobody is logged in. 0 is yes.
"""

from __future__ import annotations

import ctypes
import sys

_CONVERSATION = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)
PAM_CONV_ERR = 19


class _Conversation(ctypes.Structure):
    _fields_ = [("conv", _CONVERSATION), ("appdata_ptr", ctypes.c_void_p)]


def _no_answers(_count: int, _messages: int, responses: int, _data: int) -> int:
    """Messages are not shown; modules that only tell something go on without an answer."""
    return PAM_CONV_ERR


def main() -> int:
    service, user = (argument.encode() for argument in sys.argv[1:3])
    # Modules are not linked with it, and look for its functions among those that are there for all.
    pam = ctypes.CDLL("libpam.so.0", mode=ctypes.RTLD_GLOBAL)
    pam.pam_strerror.restype = ctypes.c_char_p
    handle = ctypes.c_void_p()
    conversation = _Conversation(_CONVERSATION(_no_answers), None)
    started = pam.pam_start(service, user, ctypes.byref(conversation), ctypes.byref(handle))
    answer = started or pam.pam_acct_mgmt(handle, 0)
    print(pam.pam_strerror(handle, answer).decode())
    if not started:
        pam.pam_end(handle, answer)
    return int(answer)


if __name__ == "__main__":
    sys.exit(main())
