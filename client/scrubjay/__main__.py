"""`python -m scrubjay`: the same as the `scrubjay` command."""

from scrubjay.cli import main

raise SystemExit(main())
