"""The threads that replicas run in, and what they take over from the calling thread.

May import: `torch`.
"""
