"""Evidence: from worker files to a promoted commit. Git plumbing and sandboxes are reached through their ports."""
