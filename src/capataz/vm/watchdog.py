"""The watchdog of a program process: code that computes for too long without asking for anything is stopped, its line named.

It counts the processor's time, not the clock's, so a busy machine stops nobody. The signal's handler speaks the last word and
ends the process itself: an exception could be caught by the very loop that it should end. Code that never comes back to the
interpreter (a huge ``pow``) gets no handler; a second signal kills the process then, and its run fails after its restarts.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

from capataz.contracts.errors import ProgramFailed
from capataz.vm.sites import call_site

BUSY_S = 60.0
_HARD = 2.0


class Watchdog:
    """``stop`` gets the error and must not return, unless the code is a callback that the error may end."""

    def __init__(self, stop: Callable[[ProgramFailed], None]) -> None:
        self._stop = stop
        self._limit_s = BUSY_S

    def start(self, limit_s: float) -> None:
        """From the program's first line on."""
        self._limit_s = limit_s
        signal.signal(signal.SIGVTALRM, lambda *_: self._stop(self._error()))
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        self.feed()

    def feed(self) -> None:
        """Program code gets its full time again."""
        signal.setitimer(signal.ITIMER_VIRTUAL, self._limit_s, self._limit_s)
        signal.setitimer(signal.ITIMER_PROF, self._limit_s * _HARD)

    def end(self) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)

    def _error(self) -> ProgramFailed:
        site = call_site(2)
        return ProgramFailed(
            f"{site or 'the program'}: it computed for {self._limit_s:g} s without an await that reaches the runtime: an endless loop? "
            "`await` in it, or put long work into step()", type="EndlessLoop", site=site,
        )
