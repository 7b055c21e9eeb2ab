"""Writes one JSON line for each test that pytest or unittest collects and runs: ``{"r", "i", "f", "o"}``.

r: runner; i: the test's id; f: its file, relative to the folder where the process started; o: collected, passed, failed,
skipped, xfailed or xpassed. Used by ``sitecustomize`` beside it; a pytest plugin at the same time.
"""

import json
import os
import sys

_FOLDER = os.environ.get("CAPATAZ_TEST_REPORTS", "")
_ROOT = os.path.realpath(os.environ.get("CAPATAZ_TEST_ROOT") or os.getcwd())
_state = {"pid": None, "fd": None, "pytest": False, "depth": 0}


def _write(runner, test, file, outcome):
    line = json.dumps({"r": runner, "i": test, "f": file, "o": outcome}) + "\n"
    try:
        if _state["pid"] != os.getpid():
            os.makedirs(_FOLDER, exist_ok=True)
            name = os.path.join(_FOLDER, "%d-%s.jsonl" % (os.getpid(), os.urandom(4).hex()))
            _state["fd"] = os.open(name, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
            _state["pid"] = os.getpid()
        os.write(_state["fd"], line.encode("utf-8", "surrogatepass"))
    except OSError:
        pass


def _relative(file):
    if not file:
        return None
    path = os.path.realpath(str(file))
    return os.path.relpath(path, _ROOT) if path.startswith(_ROOT + os.sep) else None


# ---- pytest ----


def pytest_sessionstart(session):
    _state["pytest"] = True


def pytest_collection_finish(session):
    for item in session.items:
        _write("pytest", item.nodeid, _relative(getattr(item, "path", None) or getattr(item, "fspath", None)), "collected")


def pytest_runtest_logreport(report):
    outcome = _outcome(report)
    if outcome:
        _write("pytest", report.nodeid, None, outcome)


def _outcome(report):
    expected = hasattr(report, "wasxfail")
    if report.skipped:
        return "xfailed" if expected else "skipped"
    if report.failed:
        return "failed"
    if report.when == "call":
        return "xpassed" if expected else "passed"
    return None


# ---- unittest ----


def _case_file(case):
    module = sys.modules.get(type(case).__module__)
    return _relative(getattr(module, "__file__", None))


def _is_real(case):
    return type(case).__name__ == "FunctionTestCase" or (hasattr(case, "id") and not type(case).__module__.startswith("unittest."))


def watch_cases(test_case):
    original = test_case.run

    def run(self, result=None):
        if result is None or _state["pytest"] or not _is_real(self):
            return original(self, result)
        names = ("failures", "errors", "skipped", "expectedFailures", "unexpectedSuccesses")
        before = {name: len(getattr(result, name, ())) for name in names}
        try:
            return original(self, result)
        finally:
            new = {name: list(getattr(result, name, ()))[before[name]:] for name in names}
            _write("unittest", self.id(), _case_file(self), _case_outcome(self, new))

    test_case.run = run


def _case_outcome(case, new):
    if new["failures"] or new["errors"]:
        return "failed"
    if any(entry[0] is case for entry in new["skipped"]):
        return "skipped"
    if new["expectedFailures"]:
        return "xfailed"
    return "xpassed" if new["unexpectedSuccesses"] else "passed"


def watch_suites(test_suite):
    original = test_suite.run

    def run(self, result, *args, **kwargs):
        if _state["depth"] == 0 and not _state["pytest"]:
            _collected(self)
        _state["depth"] += 1
        try:
            return original(self, result, *args, **kwargs)
        finally:
            _state["depth"] -= 1

    test_suite.run = run


def _collected(suite):
    for test in suite:
        if hasattr(test, "__iter__"):
            _collected(test)
        elif test is not None and _is_real(test):
            _write("unittest", test.id(), _case_file(test), "collected")
