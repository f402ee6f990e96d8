"""`python -m gateway` is the command `turngate`."""

from gateway.cli import main

raise SystemExit(main())
