"""`python -m tensorladder` is the command `tensorladder`."""

from tensorladder.cli.app import entry

if __name__ == "__main__":
    entry()
