"""What C++ asks the devices, and tables of C++ that simgpu reads and writes."""
