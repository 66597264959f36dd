"""Scripts of other libraries, such as transformers, run on simulated devices as users run them."""
