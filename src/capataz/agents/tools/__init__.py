"""The tools of an agent: one file a group, each answer a ``ToolReply``."""
