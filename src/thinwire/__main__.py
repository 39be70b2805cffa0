"""`python -m thinwire`, as torchrun starts it."""

from thinwire.cli import main

if __name__ == "__main__":
    main()
