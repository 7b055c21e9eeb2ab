"""Loaded by every Python process of a suite (first on PYTHONPATH, outside the tree): reports the ids of its tests.

Only unittest and pytest are touched, at their import. Written for every Python 3 that a repository may use.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_REPORTS = os.environ.get("CAPATAZ_TEST_REPORTS")


class _After:
    """Runs a function on a module when it has been loaded."""

    def __init__(self, hooks):
        self.hooks = hooks

    def find_spec(self, name, path=None, target=None):
        hook = self.hooks.pop(name, None)
        if hook is None:
            return None
        import importlib.util

        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, hook)
        return spec


class _Loader:
    def __init__(self, loader, hook):
        self._loader = loader
        self._hook = hook

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        try:
            self._hook(module)
        except Exception as error:
            sys.stderr.write("capataz: test ids are not reported: %r\n" % (error,))


def _pytest(module):
    manager = module.PytestPluginManager
    original = manager.consider_env

    def consider_env(self):
        original(self)
        import capataz_reporter

        if not self.has_plugin("capataz_reporter"):
            self.register(capataz_reporter, "capataz_reporter")

    manager.consider_env = consider_env


def _unittest_case(module):
    import capataz_reporter

    capataz_reporter.watch_cases(module.TestCase)


def _unittest_suite(module):
    import capataz_reporter

    capataz_reporter.watch_suites(module.TestSuite)


def _next_sitecustomize():
    """The sitecustomize that this file stands before, if there is one."""
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec("sitecustomize", [p for p in sys.path if os.path.abspath(p or os.curdir) != _HERE])
    if spec is not None and spec.loader is not None:
        import importlib.util

        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if _REPORTS:
    sys.meta_path.insert(
        0, _After({"_pytest.config": _pytest, "unittest.case": _unittest_case, "unittest.suite": _unittest_suite})
    )
_next_sitecustomize()
