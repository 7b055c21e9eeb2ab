"""Capataz for models: an MCP server whose tools write, check, start, watch and steer programs and runs."""
