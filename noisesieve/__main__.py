"""`python -m noisesieve` is `noisesieve`."""

from noisesieve.cli import main

if __name__ == "__main__":
    main()
