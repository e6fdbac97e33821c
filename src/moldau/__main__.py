"""`python -m moldau` is `moldau`."""

import sys

from moldau.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
