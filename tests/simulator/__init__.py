"""What only simulated devices have: traces, argument checks, processes."""
