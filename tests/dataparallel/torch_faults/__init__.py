"""The known faults of torch.nn.DataParallel, by number: theirs shows each, ours does not.

A test is named after its row (`test_fault_07_...`) and runs both implementations on the same
devices, so that a release of PyTorch which mends a fault is noticed here. `sides` holds what the
tests share.

    test_arguments    2 3 4 8      what is cut, and into how many chunks
    test_structures   5 7 9 17 18  what goes in and comes out
    test_replicas     1 6 10 11 16 20 21   what a replica is made of
    test_calls        12 13 14 15 19   threads, failures, what stays between calls
"""
