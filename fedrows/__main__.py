"""`python -m fedrows` is the same as `fedrows`."""

import sys

from fedrows.cli import main

if __name__ == "__main__":
    sys.exit(main())
