"""Running sessions: one sample of a task from an empty workspace to a graded session folder, and many of them."""
