"""Attacks on a sandbox: what hostile commands try, and must not get. Part of the conformance suite of sandboxes."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import tempfile
from pathlib import Path

from capataz.contracts.errors import SandboxFailed
from capataz.contracts.sandbox import Mount
from capataz.testing.sandbox_conformance import Bench, check, expect, host_processes

_SECRET = "s3cret-of-the-host"


@check("filesystem")
async def nothing_outside_is_writable(b: Bench) -> None:
    script = (
        "import os\nhit = []\n"
        "for top in ['/', '/usr', '/usr/bin', '/usr/local', '/etc', '/bin', '/lib', '/var', '/var/lib', '/home', '/root', '/run', '/opt',\n"
        "            '/capataz', '/capataz/helper', '/capataz/helper/capataz_resident', '/dev', '/proc', '/proc/sys/kernel', '/sys', '/mnt', '/srv']:\n"
        "    try: open(top + '/capataz-was-here', 'w').close(); hit.append(top)\n    except OSError: pass\n"
        "import glob\nsteering = [f for top in ('sys', 'irq', 'bus') for f in glob.glob(f'/proc/{top}/**', recursive=True) if not os.path.isdir(f)]\n"
        "steering += [f for f in glob.glob('/proc/*') if not f[6:].isdigit() and os.path.isfile(f)]\n"
        "for f in steering + ['/etc/passwd', '/etc/hosts', '/usr/bin/env', '/proc/sys/kernel/core_pattern', '/proc/sysrq-trigger', '/proc/sys/kernel/hostname',\n"
        "          '/proc/sys/vm/drop_caches', '/proc/1/oom_score_adj', '/proc/1/mem', '/capataz/helper/capataz_resident/main.py']:\n"
        "    try: open(f, 'r+').close(); hit.append(f)\n    except OSError: pass\n"
        "print(hit)"
    )
    result = await b.python(script)
    expect(result.stdout.strip() in (b"[]", b"['/proc/1/oom_score_adj']"), f"writable: {result.stdout!r} {result.stderr!r}")


@check("filesystem")
async def host_files_are_not_there(b: Bench) -> None:
    """A secret beside the workspace, the user's home and the host's secrets are out of reach by any path."""
    (b.folder / "secret").write_text(_SECRET)
    places = [b.folder / "secret", Path(tempfile.gettempdir()), Path("/etc/shadow"), Path("/etc/ssl/private"), Path("/root/.ssh"), Path("/sys/class"), Path("/boot")]
    places += [Path.home() / name for name in (".ssh", ".bashrc", ".netrc", ".gitconfig", ".config", ".cache")]
    script = (
        "import os, sys\n"
        "def see(p):\n"
        "    try: return os.listdir(p) if os.path.isdir(p) else open(p).read()\n"
        "    except OSError: return None\n"
        "print([p for p in sys.argv[1:] if see(p) and p != '/tmp'], set(os.listdir('/tmp')) - {'home'})"
    )
    s = await b.session()
    result = await s.run(["python3", "-I", "-S", "-c", script, *map(str, places)])
    expect(result.stdout == b"[] set()\n", f"visible: {result.stdout!r} {result.stderr!r}")
    walk = "import os\nfor top, dirs, files in os.walk('/'):\n    if top == '/': dirs[:] = set(dirs) - {'proc', 'usr'}\n    dirs[:] = [d for d in dirs if not d.startswith('python3')]\n    if 'secret' in files: print(top)"
    result = await b.python(walk, s)
    expect(result.stdout == b"", f"the secret is at {result.stdout!r}")


@check("processes")
async def host_processes_and_environment_are_not_there(b: Bench) -> None:
    os.environ["CAPATAZ_CONFORMANCE_SECRET"] = _SECRET
    try:
        script = (
            "import os, glob\nwords = [b'" + _SECRET + "', b'CONFORMANCE_SECRET']\n"
            "pids = sorted(int(p) for p in os.listdir('/proc') if p.isdigit())\n"
            "found = [w for w in words if w in str(os.environ).encode()]\n"
            "for f in glob.glob('/proc/[0-9]*/environ') + glob.glob('/proc/[0-9]*/task/*/environ') + ['/proc/cmdline', '/proc/keys']:\n"
            "    try: data = open(f, 'rb').read()\n    except OSError: continue\n"
            "    found += [f for w in words if w in data] or ([f] if f in ('/proc/cmdline', '/proc/keys') and data else [])\n"
            "print(len(pids) < 8, found)"
        )
        result = await b.python(script)
    finally:
        del os.environ["CAPATAZ_CONFORMANCE_SECRET"]
    expect(result.stdout == b"True []\n", f"{result.stdout!r} {result.stderr!r}")


@check("network")
async def no_socket_of_the_host_is_reachable(b: Bench) -> None:
    """Path, abstract and TCP sockets that really listen on the host, the path ones even inside the workspace's parent."""
    path = Path(tempfile.mkdtemp(prefix="capataz-")) / "s"
    abstract = f"\0{path}"                      # a name of this suite's own: several may run on one host
    listeners = [_listen(socket.AF_UNIX, str(path)), _listen(socket.AF_UNIX, abstract), _listen(socket.AF_INET, ("127.0.0.1", 0))]
    port = listeners[2].getsockname()[1]
    targets = [str(path), abstract, "/run/docker.sock", "/var/run/docker.sock", "/run/dbus/system_bus_socket", "\0/tmp/.X11-unix/X0"]
    script = (
        "import socket\nhit = []\n"
        f"for target in {targets!r}:\n"
        "    s = socket.socket(socket.AF_UNIX)\n"
        "    try: s.connect(target); hit.append(target)\n    except OSError: pass\n"
        f"for target in [('127.0.0.1', {port}), ('10.0.0.1', 80), ('1.1.1.1', 53), ('169.254.169.254', 80)]:\n"
        "    s = socket.socket(); s.settimeout(1)\n"
        "    try: s.connect(target); hit.append(target)\n    except OSError: pass\n"
        "for family in (socket.AF_VSOCK, socket.AF_PACKET, socket.AF_ALG, 9, 29, 38):\n"
        "    try: socket.socket(family, socket.SOCK_RAW); hit.append(family)\n    except OSError: pass\n"
        "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); c = socket.socket(); c.connect(s.getsockname())\n"
        "print(hit, [name for _, name in socket.if_nameindex()])"
    )
    try:
        result = await b.sh("python3 -c \"$SCRIPT\"", env={"SCRIPT": script})
    finally:
        for listener in listeners:
            listener.close()
        path.unlink()
        path.parent.rmdir()
    expect(result.stdout == b"[] ['lo']\n", f"reached: {result.stdout!r} {result.stderr!r}")


def _listen(family: int, address: object) -> socket.socket:
    listener = socket.socket(family)
    listener.bind(address)  # type: ignore[arg-type]
    listener.listen()
    return listener


@check("network")
async def mounted_sockets_are_refused_and_forwards_work(b: Bench) -> None:
    from capataz.contracts.errors import SandboxUnavailable

    folder = Path(tempfile.mkdtemp(prefix="capataz-"))
    server = await asyncio.start_unix_server(_shout, str(folder / "s"))
    try:
        try:
            await b.session(read_only=(Mount(folder / "s", "/socket"),))
        except SandboxUnavailable:
            pass
        else:
            expect(False, "a socket was mounted")
        s = await b.session(forwards={8123: folder / "s", 8124: folder / "away"})
        script = (
            "import socket\nc = socket.create_connection(('127.0.0.1', 8123)); c.sendall(b'x' * 300000); c.shutdown(1)\n"
            "data = b''\nwhile part := c.recv(65536): data += part\n"
            "d = socket.create_connection(('127.0.0.1', 8124))\n"
            "try: rest = d.recv(1)\nexcept OSError: rest = b''\n"
            "print(data == b'X' * 300000, rest)"
        )
        result = await s.run(["python3", "-c", script])
        expect(result.stdout == b"True b''\n", f"{result.stdout!r} {result.stderr!r}")
    finally:
        server.close()
        shutil.rmtree(folder)


async def _shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data.upper())
        await writer.drain()
    writer.close()


_SYSCALLS = """
import ctypes, os, platform, struct
libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == 'x86_64'
numbers = {'keyctl': 250, 'add_key': 248, 'bpf': 321, 'perf_event_open': 298, 'userfaultfd': 323, 'mount': 165, 'umount2': 166,
  'pivot_root': 155, 'chroot': 161, 'unshare': 272, 'setns': 308, 'io_uring_setup': 425, 'kexec_load': 246, 'open_by_handle_at': 304,
  'open_tree': 428, 'fsopen': 430, 'fspick': 433, 'move_mount': 429, 'mount_setattr': 442, 'init_module': 175, 'swapon': 167,
  'reboot': 169, 'fanotify_init': 300, 'clone3': 435, 'quotactl': 179, 'acct': 163, 'syslog': 103} if x86 else {
  'keyctl': 219, 'add_key': 217, 'bpf': 280, 'perf_event_open': 241, 'userfaultfd': 282, 'mount': 40, 'umount2': 39,
  'pivot_root': 41, 'chroot': 51, 'unshare': 97, 'setns': 268, 'io_uring_setup': 425, 'kexec_load': 104, 'open_by_handle_at': 265,
  'open_tree': 428, 'fsopen': 430, 'fspick': 433, 'move_mount': 429, 'mount_setattr': 442, 'init_module': 105, 'swapon': 224,
  'reboot': 142, 'fanotify_init': 262, 'clone3': 435, 'quotactl': 60, 'acct': 89, 'syslog': 116}
bad = []
for name, number in numbers.items():
    ctypes.set_errno(0)
    if libc.syscall(number, 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() not in (1, 38):
        bad.append((name, ctypes.get_errno()))
for flag in (0x10000000, 0x20000000, 0x40000000, 0x00020000, 0x10020011):
    pid = libc.syscall(56 if x86 else 220, flag | 17, 0, 0, 0, 0)
    if pid == 0: os._exit(0)
    if pid != -1: bad.append(('clone', hex(flag)))
    if libc.unshare(flag & ~17) == 0: bad.append(('unshare', hex(flag)))
import fcntl
for request in (0x5412, 0x541C, (1 << 32) | 0x5412):
    ctypes.set_errno(0)
    if libc.ioctl(0, ctypes.c_ulong(request), b'x') != -1 or ctypes.get_errno() != 1: bad.append(('ioctl', hex(request), ctypes.get_errno()))
if x86 and libc.syscall(0x40000000 | 39) != -1: bad.append('x32')
if libc.syscall(1000) != -1: bad.append('new calls')
status = dict(line.split(':\\t') for line in open('/proc/self/status').read().splitlines() if ':\\t' in line)
for key in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb'):
    if int(status[key], 16): bad.append(key)
if status['NoNewPrivs'] != '1' or status['Seccomp'] != '2': bad.append('status')
print(bad)
"""


@check("seccomp")
async def dangerous_calls_are_refused(b: Bench) -> None:
    s = await b.session()
    result = await s.run(["python3", "-c", _SYSCALLS])
    expect(result.stdout == b"[]\n", f"{result.stdout!r} {result.stderr[-300:]!r}")


@check("user-namespaces")
async def no_new_powers(b: Bench) -> None:
    s = await b.session()
    script = (
        "unshare -U true && echo userns; unshare -Ur mount -t tmpfs x /mnt && echo mounted; mount -o remount,rw / && echo remounted;"
        "mount -t proc proc /tmp && echo proc; chroot / true && echo chroot; mknod /tmp/d b 8 0 && echo mknod; mknod c c 1 3 && echo mknod2;"
        "setpriv --reuid=0 true 2>/dev/null && echo setuid; su -c true </dev/null && echo su; cp /bin/sh x; chmod 4755 x; ./x -p -c 'test $(id -u) = 0' && echo suid;"
        "hostname evil && echo hostname; date -s 2001-01-01 >/dev/null && echo date; dmesg && echo dmesg; renice -n -5 $$ && echo renice; true"
    )
    result = await b.sh(script, s)
    expect(result.stdout == b"", f"these worked: {result.stdout!r}")


@check("processes")
async def the_helper_cannot_be_touched(b: Bench) -> None:
    s = await b.session()
    script = (
        "import os, ctypes, signal, resource\nhit = []\n"
        "for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP, signal.SIGINT, signal.SIGSEGV, 34):\n"
        "    try: os.kill(1, number)\n    except OSError: pass\n"
        "libc = ctypes.CDLL(None, use_errno=True)\n"
        "if libc.ptrace(16, 1, 0, 0) == 0: hit.append('attach')\n"
        "if libc.ptrace(0x4206, 1, 0, 0) == 0: hit.append('seize')\n"
        "for f in ('mem', 'environ', 'maps', 'auxv', 'stack', 'map_files', 'root', 'cwd'):\n"
        "    try: os.listdir('/proc/1/' + f) if os.path.isdir('/proc/1/' + f) else open('/proc/1/' + f, 'rb').read(10); hit.append(f)\n    except OSError: pass\n"
        "for n in range(20):\n    try: os.readlink(f'/proc/1/fd/{n}'); hit.append(f'/proc/1/fd/{n}')\n    except OSError: pass\n"
        "try: resource.prlimit(1, resource.RLIMIT_NOFILE, (3, 3)); hit.append('prlimit')\nexcept OSError: pass\n"
        "try: os.sched_setaffinity(1, {0}); hit.append('affinity')\nexcept OSError: pass\n"
        "try: os.setpriority(os.PRIO_PROCESS, 1, 19); hit.append('nice')\nexcept OSError: pass\n"
        "fd = os.pidfd_open(1)\n"
        "if libc.syscall(438, fd, 3, 0) >= 0: hit.append('pidfd_getfd')\n"
        "hit += [f'fd {n}' for n in range(3, 50) if os.path.exists(f'/proc/self/fd/{n}') and n != fd and not os.readlink(f'/proc/self/fd/{n}').startswith('/proc')]\n"
        "print(hit)"
    )
    result = await s.run(["python3", "-c", script])
    expect(result.stdout == b"[]\n", f"{result.stdout!r} {result.stderr[-300:]!r}")
    await s.files.write(b"alive", b"yes")
    expect((await b.sh("cat alive", s)).stdout == b"yes", "the helper does not answer any more")


@check("processes")
async def killing_the_lane_frees_nobody(b: Bench) -> None:
    """A command that kills what started it ends itself and all that it left behind, and is no success."""
    s = await b.session()
    script = "setsid sh -c 'sleep 983 & sleep 983' & sleep 0.1; kill -STOP $PPID; kill -9 $PPID; kill -9 -1; sleep 982; exit 0"
    try:
        result = await b.sh(script, s, timeout_s=10)
        expect(result.exit_code != 0 or result.reason != "exit", f"{result}")
    except SandboxFailed:
        pass
    result = await b.sh("echo alive; ls -d /proc/[0-9]* | wc -l", s)
    expect(result.stdout.split()[:1] == [b"alive"], "the session did not survive")
    expect(int(result.stdout.split()[1]) <= 6, "processes were left behind")
    stopped = await b.sh("kill -STOP $PPID; sleep 0.2; exit 3", s, timeout_s=0.5)
    expect(stopped.reason in ("timeout", "killed", "exit"), f"{stopped}")
    expect((await b.sh("echo alive", s)).stdout == b"alive\n", "a stopped lane stopped the session")


@check("processes")
async def processes_of_the_host_die_too(b: Bench) -> None:
    """Nothing that a command started is a process of the host after it, whatever it did to get away."""
    s = await b.session()
    script = (
        "import os, time\n"
        "for n in range(20):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork(): os._exit(0)\n"
        f"        os.execvp('sleep', ['sleep', '{b.seconds}'])\n"
        "print('done')"
    )
    result = await b.python(script, s)
    expect(result.stdout == b"done\n", f"{result}")
    expect(not host_processes(b.seconds.encode()), "a process got away")


@check("filesystem")
async def terminals_and_devices(b: Bench) -> None:
    result = await b.sh("ls /dev; cat /dev/tty; ls /dev/pts; test -e /dev/kmsg -o -e /dev/mem -o -e /dev/vda -o -e /dev/sda && echo device; true")
    allowed = {b"core", b"fd", b"full", b"null", b"ptmx", b"pts", b"random", b"shm", b"stderr", b"stdin", b"stdout", b"tty", b"urandom", b"zero"}
    found = set(result.stdout.split())
    expect(found <= allowed, f"devices: {found - allowed}")
