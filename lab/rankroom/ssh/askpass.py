"""The program that ssh runs to ask its user something where it has no terminal (SSH_ASKPASS).

ssh reads the answer from our standard output. Our standard error appears among ssh's own messages:
lines that begin with one of the constants below, from which `login` sees how the asking went.
"""

from __future__ import annotations

import os
import sys

from rankroom import config
from rankroom.ssh import questions

ASKS = "rankroom asks: "
ANSWERED = "rankroom was answered: "
UNANSWERED = "rankroom: no answer: "
REFUSED = "rankroom: not answered: "
HOST_VARIABLE = "RANKROOM_ASKS_FOR"


def main(text: str) -> int:
    """Ask, and print the answer; return 1 when there is none."""
    # Some questions, such as those of a key agent, need no answer but yes or no.
    hint = os.environ.get("SSH_ASKPASS_PROMPT", "")
    confirm = hint == "confirm"
    secret = not hint and "(yes/no" not in text
    shown = " ".join(text.split())
    say(ASKS + shown)
    try:
        answer = questions.ask(
            os.environ.get(HOST_VARIABLE, ""), text.strip(), secret, config.ask_seconds()
        )
    except TimeoutError:
        say(UNANSWERED + shown)
        return 1
    if answer is None or (confirm and answer.strip().lower() not in ("", "y", "yes", "ok")):
        say(REFUSED + shown)
        return 1
    print(answer)
    say(ANSWERED + shown)
    return 0


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else ""))
