"""The read-only system inside: assembled from an allow-list, never the host's root.

What can hold secrets of the host stays out: ``/home``, ``/root``, ``/var``, ``/run``, ``/sys``, most of ``/etc``.
"""

from __future__ import annotations

import glob
import os
import stat
import sys
from pathlib import Path

_ETC = (
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/ssl/certs", "/etc/ssl/openssl.cnf",
    "/etc/ca-certificates", "/etc/ca-certificates.conf", "/etc/pki/ca-trust/extracted", "/etc/pki/tls/certs", "/etc/crypto-policies",
    "/etc/localtime", "/etc/timezone", "/etc/mime.types", "/etc/protocols", "/etc/services", "/etc/magic", "/etc/java-*", "/etc/perl",
    "/etc/python3*", "/etc/terminfo", "/etc/fonts", "/etc/debian_version", "/etc/os-release", "/etc/lsb-release",
)
_TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_STORES = ("/nix/store", "/gnu/store")         # where these systems keep what others keep in /usr
_PROC_FILES = (
    "cmdline", "kcore", "keys", "key-users", "kallsyms", "kmsg", "kpagecgroup", "kpagecount", "kpageflags", "latency_stats",
    "modules", "mtrr", "sched_debug", "slabinfo", "timer_list", "vmallocinfo",
)
_PROC_FOLDERS = ("acpi", "asound", "driver", "fs", "scsi", "tty")
_NEVER = ("/", "/root", "/home", "/etc", "/var", "/tmp", "/run", "/dev", "/proc", "/sys", "/boot", "/srv", "/mnt", "/media")

FILES: dict[str, str] = {
    "passwd": "root:x:0:0:root:/root:/bin/sh\nworker:x:1000:1000:worker:/tmp/home:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "group": "root:x:0:\nworker:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\nprotocols: files\n",
    "hostname": "sandbox\n",
    "host.conf": "multi on\n",
    "machine-id": "00000000000000000000000000000001\n",
}


def lay(folder: Path) -> None:
    """Writes the synthetic files into ``folder``, and what masks a path: a file and a folder that nobody may open."""
    folder.mkdir(mode=0o755, exist_ok=True)
    for name, text in FILES.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o644)
    tools = folder / "bin"
    tools.mkdir(exist_ok=True)
    for name in ("python", "python3"):
        (tools / name).symlink_to(interpreter())
    (folder / "masked-file").touch(mode=0)
    (folder / "masked-folder").mkdir(mode=0)


def interpreter() -> Path:
    """The real program file of the running Python (outside any virtual environment)."""
    return Path(os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable))


def python_folders() -> list[Path]:
    """Host folders that the running Python needs and that are not below ``/usr``: its prefix, or in odd places only its parts."""
    found: list[Path] = []
    for prefix in dict.fromkeys((Path(sys.base_prefix), Path(sys.base_exec_prefix), interpreter().parent.parent)):
        for place in dict.fromkeys((prefix.absolute(), prefix.resolve())):
            if not _inside_system(place):
                found += [place] if _is_own_tree(place) else _parts(place)
    return list(dict.fromkeys(found))


def _inside_system(place: Path) -> bool:
    return any(place == top or top in place.parents for top in map(Path, ("/usr", "/bin", "/lib", "/lib64", *_STORES)))


def _is_own_tree(place: Path) -> bool:
    """Whether the prefix holds a Python and nothing else: not a home folder or above one."""
    home = Path(os.path.expanduser("~")).resolve()
    return str(place) not in _NEVER and place != home and place not in home.parents and place.parent != Path("/home")


def _parts(prefix: Path) -> list[Path]:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    names = glob.glob(str(prefix / "bin" / "python3*")) + glob.glob(str(prefix / "lib" / "libpython3*"))
    return [Path(name) for name in names] + [prefix / "lib" / version]


def mounts(synthetic: Path) -> list[str]:
    """bwrap's options for everything but the workspace. ``synthetic``: a folder that ``lay`` filled."""
    options = ["--ro-bind", "/usr", "/usr"]
    if Path("/usr/local/etc").is_dir():
        options += ["--tmpfs", "/usr/local/etc", "--remount-ro", "/usr/local/etc"]    # settings of the host's tools, tokens among them
    for name in _TOP:
        options += _top(Path("/", name))
    for store in _STORES:
        options += ["--ro-bind-try", store, store]
    for pattern in _ETC:
        for path in sorted(glob.glob(pattern)):
            options += ["--ro-bind-try", path, path]
    for name in FILES:
        options += ["--ro-bind", str(synthetic / name), f"/etc/{name}"]
    options += ["--ro-bind", str(synthetic / "bin"), "/capataz/bin"]
    for folder in python_folders():
        options += ["--ro-bind-try", str(folder), str(folder)]
    return options


def _top(path: Path) -> list[str]:
    if path.is_symlink():
        return ["--symlink", os.readlink(path), str(path)]
    return ["--ro-bind", str(path), str(path)] if path.is_dir() else []


def proc(synthetic: Path) -> list[str]:
    """A ``/proc`` of the new namespace, without the parts that tell about the whole machine or steer it."""
    options = ["--proc", "/proc"]
    for name in _PROC_FILES:
        if Path("/proc", name).exists():
            options += ["--ro-bind", "/dev/null", f"/proc/{name}"]
    for name in _PROC_FOLDERS:
        if Path("/proc", name).is_dir():
            options += ["--ro-bind", str(synthetic / "masked-folder"), f"/proc/{name}"]
    return options


def path_folders() -> list[str]:
    """The folders of PATH inside: the running Python's before the system's."""
    own = [str(folder / "bin") for folder in python_folders() if (folder / "bin").is_dir()]
    return [*own, "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/capataz/bin"]


def is_socket_or_device(path: Path) -> bool:
    """Whether mounting ``path`` would hand in more than files."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return stat.S_ISSOCK(mode) or stat.S_ISCHR(mode) or stat.S_ISBLK(mode)
