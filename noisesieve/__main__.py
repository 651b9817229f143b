"""`python -m noisesieve` is `noisesieve`."""

import os
import sys

if __name__ == "__main__":
    # `python -m` looks for modules in the working folder first, which may be a stranger's dataset with a numpy.py.
    if not sys.flags.safe_path and sys.path and sys.path[0] == os.getcwd():
        del sys.path[0]
    from noisesieve.cli import main

    main()
