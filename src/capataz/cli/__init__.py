"""The command line: verbs and terminal rendering. It talks to ``capataz.wiring`` only, through ``app_port``."""
