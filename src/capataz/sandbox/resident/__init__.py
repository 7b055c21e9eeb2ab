"""The resident helper: the only code of ours that runs inside a sandbox.

It is started once a session by a bare interpreter (``-I -S -E``), so it uses built-in modules alone: ``socket``, ``ctypes``
or ``subprocess`` would double the start-up time. In a pid namespace it is process 1, which nothing inside can signal.
"""
