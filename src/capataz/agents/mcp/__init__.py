"""Tools of MCP servers, for agents: connections, and the tools themselves."""
