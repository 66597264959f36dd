"""The suite: one file per family of properties. `README.md` says where a test goes."""
