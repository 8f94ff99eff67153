"""A Jupyter server for tests that resolves the uids of made-up learners to names."""

from __future__ import annotations

from jupyter_server.serverapp import main

from made_up_seats import name_accounts

if __name__ == "__main__":
    name_accounts()
    main()
