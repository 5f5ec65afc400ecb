"""What to run, and why: one decision in each file."""
