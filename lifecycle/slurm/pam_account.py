"""Test whether PAM admits a user: pam_account.py SERVICE USER prints PAM's answer and exits with its number.

Only the account rules apply, as in sshd after it has accepted a key. No one is logged in. 0 means yes.
"""

import ctypes
import sys

_CONVERSATION = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)
PAM_CONV_ERR = 19


class _Conversation(ctypes.Structure):
    _fields_ = [("conv", _CONVERSATION), ("appdata_ptr", ctypes.c_void_p)]


def main() -> int:
    service, user = (argument.encode() for argument in sys.argv[1:3])
    # Modules are not linked with the library and look for its functions in the global namespace.
    pam = ctypes.CDLL("libpam.so.0", mode=ctypes.RTLD_GLOBAL)
    pam.pam_strerror.restype = ctypes.c_char_p
    handle = ctypes.c_void_p()
    # No message gets an answer; modules that only inform continue without one.
    conversation = _Conversation(_CONVERSATION(lambda *_message: PAM_CONV_ERR), None)
    started = pam.pam_start(service, user, ctypes.byref(conversation), ctypes.byref(handle))
    answer = started or pam.pam_acct_mgmt(handle, 0)
    print(pam.pam_strerror(handle, answer).decode())
    if not started:
        pam.pam_end(handle, answer)
    return int(answer)


if __name__ == "__main__":
    sys.exit(main())
