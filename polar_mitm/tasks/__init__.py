"""Tasks: what a scenario file says, the workspace a harness starts in, and how the outcome is graded."""
