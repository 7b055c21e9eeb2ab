"""Ratios of Capataz against what else one could use, measured in one run on one machine: ``python -m bench``."""
