"""`python -m gateway` is the command `turngate`."""

from gateway.cli.main import main

raise SystemExit(main())
