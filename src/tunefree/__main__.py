"""`python -m tunefree` is the command `tunefree`."""

from .cli import main

if __name__ == "__main__":
    main()
