"""Scripts of other libraries, such as transformers, run on simulated devices as users run them.

The script of each is in `scripts/`. Models have random weights, nothing is
downloaded. A test is skipped where its library is missing or does not import:

    python -m pip install -c constraints.txt torch torchvision \\
        --index-url https://download.pytorch.org/whl/cpu
    python -m pip install -c constraints.txt -e '.[test,clients]'
    git clone --depth 1 https://github.com/pytorch/examples
    SIMGPU_CLIENTS_EXAMPLES=$PWD/examples python -m pytest -n auto -rs tests/assurance/clients

The variable is for `test_examples.py`: PyTorch's programs imagenet, dcgan, mnist and
word_language_model, on data that it writes itself.
"""
