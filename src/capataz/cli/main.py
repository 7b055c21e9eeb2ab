"""The entry point. Nothing heavy is imported before it is known that it is needed: ``capataz --version`` stays quick."""

from __future__ import annotations

import sys


def main() -> None:
    """The console script."""
    args = sys.argv[1:]
    if args in (["--version"], ["-V"]):
        from capataz.cli.version import VERSION

        sys.stdout.write(f"capataz {VERSION}\n")
        return
    from capataz.cli.entry import invoke

    raise SystemExit(invoke(args))


if __name__ == "__main__":
    main()
