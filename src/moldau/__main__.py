"""`python -m moldau` is `moldau`."""

import sys

from moldau.cli.entry import moldau

if __name__ == "__main__":
    sys.exit(moldau())
