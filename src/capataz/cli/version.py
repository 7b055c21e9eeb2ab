"""The version, as a constant: reading the package's metadata would cost more than all the rest of ``capataz --version``."""

VERSION = "0.1.0"
