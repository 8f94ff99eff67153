"""Runs a script of horovod_scripts/ on a few real ranks, for the tests of Horovod itself.

A script prints its findings as `RESULT {json}`, and fails by raising.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rankroom.horovod_build.ranks import first_failure, rendezvous, run_ranks

SCRIPTS = Path(__file__).with_name("horovod_scripts")
MARK = "RESULT "


def on_ranks(
    script: str,
    *,
    size: int = 2,
    worlds: int = 1,
    env: Mapping[str, str] | None = None,
    timeout: float = 400.0,
) -> list[dict[str, Any]]:
    """Run a script; return what each rank found. Ranks can initialise Horovod `worlds` times.

    The ports of the further rendezvous are in the ranks' MORE_PORTS.
    """
    with contextlib.ExitStack() as stack:
        more = [stack.enter_context(rendezvous(size)) for _ in range(worlds - 1)]
        ended = run_ranks(
            [str(SCRIPTS / script)],
            size,
            timeout=timeout,
            env={
                "MORE_PORTS": " ".join(map(str, more)),
                "TF_CPP_MIN_LOG_LEVEL": "2",
                "CUDA_VISIBLE_DEVICES": "",
                **(env or {}),
            },
        )
    failed = first_failure(ended)
    if failed is not None:
        end = ended[failed]
        why = "timed out" if end.timed_out else f"ended with {end.returncode}"
        pytest.fail(f"rank {failed} of {script} {why}:\n{end.tail(60)}", pytrace=False)
    return [
        {key: value for result in _results(end.output) for key, value in result.items()}
        for end in ended
    ]


def _results(output: str) -> list[dict[str, Any]]:
    marked = [line for line in output.splitlines() if line.startswith(MARK)]
    return [json.loads(line.removeprefix(MARK)) for line in marked]
