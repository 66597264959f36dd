"""What only simulated devices do or show: memory accounting, traces, checks, processes."""
