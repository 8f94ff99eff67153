"""Explanations of OpenSSH's error messages when it cannot connect."""

from __future__ import annotations

import re

from rankroom.errors import SshError
from rankroom.ssh.askpass import ANSWERED, ASKS, REFUSED, UNANSWERED
from rankroom.system.commands import Completed

# The first that matches is used: other messages, of a jump host or a site, may follow it.
# Each: the reason's name, a pattern of ssh's output, an explanation, a remedy.
KNOWN_FAILURES = (
    (
        "unanswered",
        re.escape(UNANSWERED),
        "what ssh asked was not answered ({question})",
        "try again, and answer in the dialog or the terminal",
    ),
    (
        "refused",
        re.escape(REFUSED),
        "what ssh asked was not answered ({question})",
        "try again to be asked again",
    ),
    (
        "late",
        rf"(?s){ASKS}(?!.*{ANSWERED}).*"
        r"(Connection|connection) (closed|reset|timed out|to .* closed)",
        "the login timed out before ssh's question was answered",
        "try again, and answer sooner",
    ),
    (
        "changed",
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|host key .* has changed",
        "its host key is not the one that ssh knows: the machine was reinstalled, or "
        "someone is intercepting the connection",
        "ask the site for its key; if it is new, remove the old one with `ssh-keygen -R {host}`, "
        "and connect again",
    ),
    (
        "unknown key",
        r"Host key verification failed",
        "its host key is not known here, and was not accepted",
        "run `ssh {host}` once in a terminal, compare the key with what the site publishes, and "
        "accept it",
    ),
    (
        "too many keys",
        r"Too many authentication failures",
        "it closed the connection after too many keys were tried",
        "name the one for this host in ~/.ssh/config, with `IdentitiesOnly yes` and `IdentityFile`",
    ),
    (
        "denied",
        r"Permission denied|No more authentication methods|no such identity",
        "it rejected your key or password",
        "check the user name and the key in ~/.ssh/config and that `ssh {host}` works in a "
        "terminal; an expired key or account is the site's to renew",
    ),
    (
        "unknown host",
        r"Could not resolve hostname",
        "no machine with this name is found",
        "check `login` in the site's profile, the name in ~/.ssh/config, and your network or VPN",
    ),
    (
        "slow",
        r"timed out during banner exchange|Connection to UNKNOWN port \d+ timed out",
        "it answers too slowly, or a machine on the way does",
        "try again; if it stays so, the login node is overloaded or down: see the site's status "
        "page",
    ),
    (
        "unreachable",
        r"timed out|No route to host|Network is (unreachable|down)|Host is (unreachable|down)",
        "it does not respond",
        "check your network or VPN, and the site's status page",
    ),
    (
        "unreachable",
        r"Connection refused",
        "the machine is there, but no ssh server answers on its port",
        "check the port in ~/.ssh/config, and the site's status page",
    ),
    (
        "lost",
        # Matches only connections that go through our own proxy command, not a user's jump host.
        r"(?s)\A(?!.*(closed|reset) by (?!UNKNOWN|remote|peer)).*closed by UNKNOWN port",
        "the way to it is not open: the connection to the host before it is lost or closed",
        "open that first, or wait until it is open again",
    ),
    (
        "busy",
        r"Exceeded MaxStartups|Not allowed at this time|"
        r"kex_exchange_identification: (read: )?Connection (closed|reset)|"
        r"ssh_exchange_identification: .*(closed|reset)|"
        r"Connection (closed|reset) by .* port",
        "it closed the connection immediately, as a server with too many logins at once does",
        "try again in a minute; if it stays so, the site has closed this machine's way in",
    ),
    (
        "settings",
        r"Bad configuration option|Bad owner or permissions|terminating, \d+ bad configuration",
        "ssh does not accept its configuration",
        "correct the file that it names",
    ),
)
# The reasons that may be over when the connection is retried a little later.
TRANSIENT_REASONS = {"busy"}
# The reasons that lie in the network, and may be over at any time.
NETWORK_REASONS = {"unreachable", "unknown host", "slow", "lost"}


def explain(host: str, completed: Completed) -> SshError:
    """Return an error that explains why ssh could not connect to `host`, with its output."""
    said = completed.output
    why, what, remedy = "other", "ssh did not get through", "run `ssh {host}` in a terminal to see"
    if completed.timed_out:
        said += "\nConnection timed out"
    for known, pattern, meaning, cure in KNOWN_FAILURES:
        if re.search(pattern, said):
            why, what, remedy = known, meaning, cure
            break
    question = _question(said)
    return SshError(
        FAILED.format(
            host=host,
            what=what.format(host=host, question=question),
            remedy=remedy.format(host=host),
            said=_indented(completed) or "nothing",
        ),
        why,
    )


def _question(said: str) -> str:
    for word in (UNANSWERED, REFUSED):
        if word in said:
            return said.partition(word)[2].splitlines()[0].strip()
    return ""


def _indented(completed: Completed) -> str:
    """Return the last lines of ssh's output, indented, without those of `askpass`."""
    lines = [line.rstrip() for line in completed.output.splitlines()]
    kept = [line for line in lines if line.strip() and not line.startswith("rankroom")]
    return "\n".join(f"  {line}" for line in kept[-12:])


FAILED = "cannot reach {host}: {what}; {remedy}\n`ssh {host}` said:\n{said}"
