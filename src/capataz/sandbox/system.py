"""The read-only system inside: assembled from an allow-list, never the host's root.

What can hold secrets of the host stays out: ``/home``, ``/root``, ``/var``, ``/run``, ``/sys``, most of ``/etc``.
"""

# Absolute patterns and links as they are:
# ruff: noqa: PTH207, PTH116, PTH111, PTH115
from __future__ import annotations

import glob
import hashlib
import os
import shutil
import stat
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

_ETC = (
    "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/ssl/certs", "/etc/ssl/openssl.cnf",
    "/etc/ca-certificates", "/etc/ca-certificates.conf", "/etc/pki/ca-trust/extracted", "/etc/pki/tls/certs", "/etc/crypto-policies",
    "/etc/localtime", "/etc/timezone", "/etc/mime.types", "/etc/protocols", "/etc/services", "/etc/magic", "/etc/java-*", "/etc/perl",
    "/etc/python3*", "/etc/terminfo", "/etc/fonts", "/etc/debian_version", "/etc/os-release", "/etc/lsb-release",
)
_TOP = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_STORES = ("/nix/store", "/gnu/store")         # where these systems keep what others keep in /usr
_PROC_FILES_OF_ALL = ("cmdline", "keys")       # readable by anybody, and telling
# Root's own, which process 1's owner is when the worker is root (without any capability, but the files are "its own").
_PROC_FILES = (*_PROC_FILES_OF_ALL, "kcore", "kpagecgroup", "kpagecount", "kpageflags", "mtrr", "slabinfo", "timer_list", "vmallocinfo")
_PROC_FOLDERS = ("acpi", "asound", "driver", "fs", "scsi", "dynamic_debug")
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


def laid(runtime_dir: Path) -> Path:
    """See ``_laid``; looked up once a process."""
    folder = _laid(runtime_dir)
    if not folder.is_dir():
        _laid.cache_clear()
        folder = _laid(runtime_dir)
    return folder


@lru_cache(maxsize=4)
def _laid(runtime_dir: Path) -> Path:
    """A folder with ``etc`` (copies of what the allow-list names, and the synthetic files), ``bin``, and what masks a path.

    Kept below ``runtime_dir`` and made anew when the host's files change. One mount instead of fifty: each costs 0.3 ms.
    """
    sources = sorted(path for pattern in _ETC for path in glob.glob(pattern))
    facts = [(path, os.stat(path).st_mtime_ns, os.stat(path).st_size) for path in sources if Path(path).exists()]
    digest = hashlib.sha256(repr((facts, FILES, str(interpreter()))).encode()).hexdigest()[:16]
    folder = runtime_dir / "sandbox-system" / digest
    if not folder.is_dir():
        build_folder(folder, lambda place: _lay(place, sources))
    return folder


def build_folder(folder: Path, fill: Callable[[Path], None]) -> None:
    """Makes ``folder`` as one step; another process may do the same at the same time."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    building = folder.parent / f".{folder.name}-{os.getpid()}-{os.urandom(3).hex()}"
    building.mkdir(mode=0o755)
    try:
        fill(building)
        building.rename(folder)
    except OSError:
        shutil.rmtree(building, ignore_errors=True)
        if not folder.is_dir():
            raise


def _lay(folder: Path, sources: list[str]) -> None:
    for source in sources:
        _copy(Path(source), folder / source.lstrip("/"))
    for name, text in FILES.items():
        place = folder / "etc" / name
        place.unlink(missing_ok=True)
        place.write_text(text)
        place.chmod(0o644)
    (folder / "etc" / "resolv.conf").touch()
    (folder / "etc" / "mtab").symlink_to("/proc/mounts")
    (folder / "bin").mkdir()
    for name in ("python", "python3"):
        (folder / "bin" / name).symlink_to(interpreter())
    (folder / "masked-file").touch(mode=0)
    (folder / "masked-folder").mkdir(mode=0)


def _copy(source: Path, place: Path) -> None:
    """Copies what everybody on the host may read, links as links; anything else is left out."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink() and not source.is_dir():
        if source.resolve().is_relative_to("/usr"):
            place.symlink_to(source.resolve())
        elif source.is_file():
            _copy(source.resolve(), place)
    elif source.is_dir():
        place.mkdir(exist_ok=True)
        for entry in source.iterdir():
            _copy(entry, place / entry.name)
    elif source.is_file() and source.stat().st_mode & stat.S_IROTH:
        shutil.copyfile(source, place)
        shutil.copymode(source, place)


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


def mounts(laid_out: Path) -> list[str]:
    """bwrap's options for everything but the workspace. ``laid_out``: what ``laid`` gave."""
    options = ["--ro-bind", "/usr", "/usr"]
    settings = Path("/usr/local/etc")
    if settings.is_dir() and any(settings.iterdir()):
        options += ["--ro-bind", str(laid_out / "masked-folder"), str(settings)]      # of the host's tools, tokens among them
    for name in _TOP:
        options += _top(Path("/", name))
    for store in _STORES:
        if Path(store).is_dir():
            options += ["--ro-bind", store, store]
    options += ["--ro-bind", str(laid_out / "etc"), "/etc"]
    for folder in python_folders():
        if folder.exists():
            options += ["--ro-bind", str(folder), str(folder)]
    return options


def _top(path: Path) -> list[str]:
    if path.is_symlink():
        return ["--symlink", os.readlink(path), str(path)]
    return ["--ro-bind", str(path), str(path)] if path.is_dir() else []


def proc(laid_out: Path) -> list[str]:
    """A ``/proc`` of the new namespace, without the parts that tell about the whole machine or steer it.

    Most of these belong to root, so a worker that is an ordinary user needs few masks.
    """
    # bwrap covers these only where the folder itself is writable; the files below belong to root, and with a worker that is
    # root the sandbox's user is root too, only without capabilities: it could write core_pattern and own the machine.
    options = ["--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys"]
    if os.geteuid() == 0:
        for name in ("irq", "bus", "sysrq-trigger"):
            if Path("/proc", name).exists():
                options += ["--ro-bind", f"/proc/{name}", f"/proc/{name}"]
    files, folders = (_PROC_FILES, _PROC_FOLDERS) if os.geteuid() == 0 else (_PROC_FILES_OF_ALL, ())
    for name in files:
        if Path("/proc", name).exists():
            options += ["--ro-bind", "/dev/null", f"/proc/{name}"]
    for name in folders:
        if Path("/proc", name).is_dir():
            options += ["--ro-bind", str(laid_out / "masked-folder"), f"/proc/{name}"]
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
