"""What judges the suite itself, or uses other people's code: not run by default."""
