"""The ``command`` harness: coding-agent programs in the sandbox, their model traffic through a metering proxy."""
