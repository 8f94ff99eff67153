"""The example that sysadmins copy, with one test password in place of a site's accounts."""

import os

c = get_config()  # noqa: F821
load_subconfig(os.environ["HUB_EXAMPLE"])  # noqa: F821

c.JupyterHub.authenticator_class = "shared-password"
c.SharedPasswordAuthenticator.user_password = os.environ["HUB_PASSWORD"]
