"""What only simulated devices do or show: the ledger, traces, checks, refusals, processes."""
