"""Which devices there are: models of GPUs, sets of devices one after the other, `enable`."""
