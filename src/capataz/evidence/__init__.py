"""Evidence: from worker files to a promoted commit (EVIDENCE.md). Git plumbing and sandboxes are reached through their ports."""
