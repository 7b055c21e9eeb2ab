"""The fault points."""

from __future__ import annotations

from docs.pages.markdown import code, document, table


def page() -> str:
    """The whole page."""
    from capataz.contracts.faults import POINTS

    return document(
        "Fault points",
        "Set `CAPATAZ_FAULT=POINT` and the process kills itself (SIGKILL) when it first reaches that point; "
        "`CAPATAZ_FAULT=POINT:3` at the third time. Nothing is cleaned up: it is what a power cut does. Then "
        "`capataz resume RUN` must finish the run. `capataz crashtest --points` prints this list.",
        "```sh\nCAPATAZ_FAULT=promote.after capataz demo --yes\ncapataz ps --limit 1\ncapataz resume RUN\n```",
        table(["point", "where"], [[code(name), where] for name, where in POINTS.items()]),
    )
