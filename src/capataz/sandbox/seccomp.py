"""The system call filter, as a classic BPF program for x86_64 and aarch64; no library of the host is needed.

A deny-list (compilers, runtimes and test suites use hundreds of calls) with two properties of an allow-list: calls newer
than this table do not exist inside (ENOSYS), and neither do other ABIs (killed). Drawn from Docker's and Flatpak's lists.
"""

from __future__ import annotations

import platform
import struct

_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_LOAD, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_NR, _ARCH, _ARG = 0, 4, 16                    # offsets in struct seccomp_data; argument n at 16 + 8 n, low half first
_NEW_NAMESPACE = 0x7E020000                    # every CLONE_NEW* flag that clone() takes
_TTY_INJECTION = (0x5412, 0x541C, 0x5423)      # TIOCSTI, TIOCLINUX, TIOCSETD
_X32 = 0x40000000
_NEWEST = 470                                  # first number that this table does not know, on both architectures

# Numbers from 424 on are common to all architectures.
_COMMON = {
    "pidfd_getfd": 438, "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
    "mount_setattr": 442, "open_tree_attr": 467, "quotactl_fd": 443, "statmount": 457, "listmount": 458,
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "memfd_secret": 447, "clone3": 435,
}
_TABLES: dict[str, dict[str, int]] = {
    "x86_64": {
        "keyctl": 250, "add_key": 248, "request_key": 249, "bpf": 321, "perf_event_open": 298, "userfaultfd": 323,
        "mount": 165, "umount2": 166, "pivot_root": 155, "chroot": 161, "unshare": 272, "setns": 308,
        "kexec_load": 246, "kexec_file_load": 320, "init_module": 175, "finit_module": 313, "delete_module": 176,
        "open_by_handle_at": 304, "name_to_handle_at": 303, "acct": 163, "swapon": 167, "swapoff": 168, "reboot": 169,
        "settimeofday": 164, "clock_settime": 227, "clock_adjtime": 305, "iopl": 172, "ioperm": 173, "modify_ldt": 154,
        "quotactl": 179, "nfsservctl": 180, "lookup_dcookie": 212, "syslog": 103, "vhangup": 153, "fanotify_init": 300,
        "uselib": 134, "_sysctl": 156, "sysfs": 139, "ustat": 136, "sethostname": 170, "setdomainname": 171,
        "move_pages": 279, "migrate_pages": 256, "kcmp": 312, "memfd_create": 319, "clone": 56, "ioctl": 16, "socket": 41,
        "prlimit64": 302, "sched_setaffinity": 203, "sched_setscheduler": 144, "sched_setparam": 142, "sched_setattr": 314,
        "setpriority": 141, "ioprio_set": 251, **_COMMON,
    },
    "aarch64": {
        "keyctl": 219, "add_key": 217, "request_key": 218, "bpf": 280, "perf_event_open": 241, "userfaultfd": 282,
        "mount": 40, "umount2": 39, "pivot_root": 41, "chroot": 51, "unshare": 97, "setns": 268,
        "kexec_load": 104, "kexec_file_load": 294, "init_module": 105, "finit_module": 273, "delete_module": 106,
        "open_by_handle_at": 265, "name_to_handle_at": 264, "acct": 89, "swapon": 224, "swapoff": 225, "reboot": 142,
        "settimeofday": 170, "clock_settime": 112, "clock_adjtime": 266,
        "quotactl": 60, "nfsservctl": 42, "lookup_dcookie": 18, "syslog": 116, "vhangup": 58, "fanotify_init": 262,
        "sethostname": 161, "setdomainname": 162,
        "move_pages": 239, "migrate_pages": 238, "kcmp": 272, "memfd_create": 279, "clone": 220, "ioctl": 29, "socket": 198,
        "prlimit64": 261, "sched_setaffinity": 122, "sched_setscheduler": 119, "sched_setparam": 118, "sched_setattr": 274,
        "setpriority": 140, "ioprio_set": 30, **_COMMON,
    },
}
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_ABSENT = ("clone3", "io_uring_setup", "io_uring_enter", "io_uring_register", "memfd_secret")   # callers fall back on ENOSYS
_ON_HELPER = ("prlimit64", "sched_setaffinity", "sched_setscheduler", "sched_setparam", "sched_setattr")
_BY_ARGUMENT = ("clone", "ioctl", "socket", "setpriority", "ioprio_set", "memfd_create", *_ON_HELPER)

Instruction = tuple[int, int, int, int]


def supported() -> bool:
    """Whether this machine's architecture has a table."""
    return platform.machine() in _TABLES


def program(*, memfd: bool = True) -> bytes:
    """The filter for this machine. ``memfd`` False: no anonymous memory files, which no watch over processes can count."""
    machine = platform.machine()
    table = _TABLES[machine]
    code: list[Instruction] = [(_LOAD, 0, 0, _ARCH), (_JEQ, 1, 0, _AUDIT_ARCH[machine]), (_RET, 0, 0, _KILL), (_LOAD, 0, 0, _NR)]
    if machine == "x86_64":
        code += _when(_JGE, _X32, [_errno(_ENOSYS)])
    code += _when(_JGE, _NEWEST, [_errno(_ENOSYS)])
    for name, number in table.items():
        if name not in _BY_ARGUMENT:
            code += _when(_JEQ, number, [_errno(_ENOSYS if name in _ABSENT else _EPERM)])
    for name, block in _argument_rules(memfd).items():
        code += _when(_JEQ, table[name], [*block, (_RET, 0, 0, _ALLOW)])
    code.append((_RET, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in code)


def _argument_rules(memfd: bool) -> dict[str, list[Instruction]]:
    rules: dict[str, list[Instruction]] = {
        "clone": [_argument(0), *_when(_JSET, _NEW_NAMESPACE, [_errno(_EPERM)])],
        "ioctl": [_argument(1), *(step for number in _TTY_INJECTION for step in _when(_JEQ, number, [_errno(_EPERM)]))],
        "socket": _socket_rule(),
        "setpriority": [_argument(1), *_when(_JEQ, 1, [_errno(_EPERM)])],
        "ioprio_set": [_argument(1), *_when(_JEQ, 1, [_errno(_EPERM)])],
        "memfd_create": [] if memfd else [_errno(_ENOSYS)],
    }
    # process 1 is the helper: same user, so the kernel would let a command starve it
    rules |= {name: [_argument(0), *_when(_JEQ, 1, [_errno(_EPERM)])] for name in _ON_HELPER}
    return rules


def _socket_rule() -> list[Instruction]:
    """AF_UNIX, AF_INET, AF_INET6, and AF_NETLINK for routes alone (``getifaddrs`` needs it)."""
    allow: Instruction = (_RET, 0, 0, _ALLOW)
    families = [step for family in (1, 2, 10) for step in _when(_JEQ, family, [allow])]
    netlink = _when(_JEQ, 16, [_argument(2), *_when(_JEQ, 0, [allow])])
    return [_argument(0), *families, *netlink, _errno(_EAFNOSUPPORT)]


def _argument(number: int) -> Instruction:
    return (_LOAD, 0, 0, _ARG + 8 * number)


def _errno(number: int) -> Instruction:
    return (_RET, 0, 0, _ERRNO | number)


def _when(test: int, value: int, block: list[Instruction]) -> list[Instruction]:
    return [(test, 0, len(block), value), *block]
