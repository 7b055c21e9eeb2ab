"""The sample repository and the scripted model of ``capataz demo``."""
