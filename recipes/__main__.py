"""`python -m recipes COMMAND`."""

import sys

from recipes.cli import main

if __name__ == "__main__":
    sys.exit(main())
