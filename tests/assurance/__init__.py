"""What judges the suite itself: planted faults, and mutants made by rule. Not run by default."""
