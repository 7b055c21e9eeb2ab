"""What others than the person at the terminal reach Capataz by."""
