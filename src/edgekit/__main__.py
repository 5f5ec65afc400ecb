"""`python -m edgekit` is `edgekit`."""

import sys

from edgekit.cli import main

sys.exit(main())
