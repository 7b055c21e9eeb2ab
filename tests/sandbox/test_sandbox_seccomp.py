"""The filter's program is executed here for both architectures: the kernel of this machine can only try its own."""

from __future__ import annotations

import struct

import pytest

from capataz.sandbox import seccomp

ALLOW, EPERM, ENOSYS, EAFNOSUPPORT, KILL = 0x7FFF0000, 0x50001, 0x50026, 0x50061, 0x80000000
ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def decide(code: bytes, arch: int, nr: int, *args: int) -> int:
    """What the filter answers (the few instructions of classic BPF that it uses)."""
    padded = [*args, 0, 0, 0, 0, 0, 0][:6]
    data = struct.pack("<IIQ6Q", nr, arch, 0, *(a % 2**64 for a in padded))
    steps = list(struct.iter_unpack("<HBBI", code))
    at, accumulator = 0, 0
    while True:
        op, yes, no, value = steps[at]
        at += 1
        if op == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif op == 0x06:
            return value
        else:
            true = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[op]
            at += yes if true else no


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request, monkeypatch) -> str:
    monkeypatch.setattr(seccomp.platform, "machine", lambda: request.param)
    return request.param


def test_decisions(machine: str) -> None:
    code, arch, table = seccomp.program(), ARCH[machine], seccomp._TABLES[machine]

    def ask(name: str, *args: int) -> int:
        return decide(code, arch, table[name], *args)

    for name in ("mount", "keyctl", "bpf", "unshare", "setns", "perf_event_open", "open_by_handle_at", "chroot", "fsopen"):
        assert ask(name) == EPERM, name
    for name in ("clone3", "io_uring_setup"):
        assert ask(name) == ENOSYS, name
    assert ask("clone", 17) == ALLOW
    for flag in (0x10000000, 0x20000, 0x20000000, 0x40000000, 0x2000000, 0x4000000, 0x8000000):
        assert ask("clone", flag | 17) == EPERM
    assert ask("ioctl", 0, 0x5412) == EPERM == ask("ioctl", 0, (1 << 32) | 0x5412)
    assert ask("ioctl", 0, 0x5413) == ALLOW
    assert [ask("socket", family, 1, 0) for family in (1, 2, 10, 16, 17, 40, 38)] == [ALLOW, ALLOW, ALLOW, ALLOW, *[EAFNOSUPPORT] * 3]
    assert ask("socket", 16, 3, 9) == EAFNOSUPPORT
    assert ask("prlimit64", 1) == EPERM and ask("prlimit64", 0) == ALLOW and ask("prlimit64", 7) == ALLOW
    assert decide(code, arch, 470) == ENOSYS and decide(code, arch, 436) == ALLOW
    assert decide(code, 0x40000003, 1) == KILL
    if machine == "x86_64":
        assert decide(code, arch, 0x40000000 | 39) == ENOSYS and decide(code, arch, 39) == ALLOW
    assert ask("memfd_create") == ALLOW
    assert decide(seccomp.program(memfd=False), arch, table["memfd_create"]) == ENOSYS


def test_no_number_is_named_twice(machine: str) -> None:
    numbers = list(seccomp._TABLES[machine].values())
    assert len(numbers) == len(set(numbers))
