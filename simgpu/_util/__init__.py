"""Small helpers below everything else: names, patch tables, frames, interrupts.

naming          the name of the device type; "3 devices" in messages; a line of progress
patching        tables of replaced attributes, applied and undone
frames          which line of the program asked; what each thread is running
interrupts      Ctrl-C that waits, or that ends a fuzzing campaign
thread_rows     one row of numbers for each thread, which machine code reads

May import: nothing but the standard library.
"""
