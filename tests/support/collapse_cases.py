"""Output of ranks, and the groups that it must collapse to, both in Python and in the view.

`python tests/support/collapse_cases.py` writes collapse.json beside it. The first cases are written
by hand; the others are random. test_lines.py and collapse.test.ts check what must hold for all.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from rankroom.display.lines import Line, collapse
from rankroom.text.rank_ranges import format_ranks

FILE = Path(__file__).with_name("collapse.json")
# What ranks print, in order of rank.
IN_TURN = {
    "one after the other": [["hello", f"I am rank {rank}", "done"] for rank in range(4)],
    "one alone": [["a", "b", "a"]],
    "a moved line is joined": [
        ["begin", "main", "end"],
        ["begin", "worker", "end"],
        ["begin", "worker", "own", "end"],
    ],
    "crossed": [["a", "b"], ["b", "a"]],
    "repeated": [["x", "x"], ["x", "x", "x"]],
    "epochs with a loss of one's own": [
        [line for epoch in range(3) for line in (f"epoch {epoch}", f"loss {rank}.{epoch}")]
        + ["done"]
        for rank in range(3)
    ],
    "too many to move": [["a", "b"], ["a", *(f"own {i}" for i in range(20)), "b"]],
    "as many as move": [["a", "b"], ["a", *(f"own {i}" for i in range(16)), "b"]],
    "in front of one that was moved": [
        ["a", "z"],
        ["a", "m", "z"],
        ["a", "l", "m", "z"],
        ["a", "k", "l", "m", "z"],
    ],
}
ABSL = "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR"
PORT = "port.cc:153] oneDNN custom operations are on. You may see slightly different results."
GUARD = "cpu_feature_guard.cc:227] This TensorFlow binary is optimized to use available CPU"
FLAGS = (
    "To enable the following instructions: AVX2 FMA, in other operations, "
    "rebuild TensorFlow with the appropriate compiler flags."
)
XLA = "external/local_xla/xla"
AGAIN = "Attempting to register factory for plugin when one has already been registered"
# What TensorFlow prints to stderr at its start: 2.21 without GPU support, 2.17 to 2.19 with it.
STARTUP = {
    "TensorFlow starts": [
        [
            ABSL,
            f"I0000 00:00:1795636176.28996{rank}   1452{rank} {PORT}",
            f"I0000 00:00:1795636176.29996{rank}   1452{rank} {GUARD}",
            FLAGS,
            "2.21.0",
            ABSL,
            f"I0000 00:00:1795636179.305491   1452{rank} {PORT}",
        ]
        for rank in range(3)
    ],
    "a build for GPUs starts": [
        [
            f"2024-08-15 02:53:40.34{rank}: E {XLA}/stream_executor/cuda/cuda_fft.cc:485] "
            f"Unable to register cuFFT factory: {AGAIN}",
            ABSL,
            f"E0000 00:00:1730497080.56   5518{rank} cuda_dnn.cc:8310] "
            f"Unable to register cuDNN factory: {AGAIN}",
            f"E0000 00:00:1730497080.57   5518{rank} cuda_blas.cc:1418] "
            f"Unable to register cuBLAS factory: {AGAIN}",
            f"W0000 00:00:1758131045.22  37220{rank} computation_placer.cc:177] "
            "computation placer already registered. Please check linkage",
            "I0000 00:00:1723690422.94 162671 cuda_executor.cc:1015] "
            "successful NUMA node read from SysFS had negative value (-1)",
            f"2024-11-02 01:08:00.58{rank}: I {XLA}/tsl/cuda/cudart_stub.cc:32] "
            "Could not find cuda drivers on your machine, GPU will not be used.",
            "2024-11-02 01:08:00.58: W tensorflow/compiler/tf2tensorrt/utils/py_utils.cc:38] "
            "TF-TRT Warning: Could not find TensorRT",
            "I0000 00:00:1723690422.95 162671 gpu_device.cc:2022] "
            f"Created device /job:localhost/replica:0/task:0/device:GPU:{rank} with 13756 MB",
            "I0000 00:00:1748865423.91 1533429 cuda_dnn.cc:529] Loaded cuDNN version 91001",
        ]
        for rank in range(2)
    ],
    "errors and warnings of the run are not start-up messages": [
        [
            ABSL,
            f"E0000 00:00:1795636685.61  746{rank} cuda_platform.cc:52] failed call to cuInit",
            "W0000 00:00:1723690422.95 162671 gpu_device.cc:2341] Cannot dlopen some libraries.",
            f"I0000 00:00:1795636176.28   1452{rank} port.cc:20] a port of one's own",
            f"see {ABSL}",
            "WARNING: All is lost",
        ]
        for rank in range(2)
    ],
    "a fold is long, but not without end": [[ABSL] * 150, [ABSL] * 64, [ABSL] * 3],
    "folds and other lines in turn": [["a", ABSL, ABSL, "b"], ["a", ABSL, "b"], [ABSL, "a", "b"]],
}
BAR = "\x1b[1m40/40\x1b[0m \x1b[32m━━━━\x1b[0m \x1b[1m{s}s\x1b[0m {ms}ms/step - loss: {loss}  "
# Lines that differ in numbers.
NUMBERS = {
    "a loss of each rank": [
        [f"epoch {epoch} loss 0.{rank + 3}{epoch}" for epoch in range(3)] + ["done"]
        for rank in range(4)
    ],
    "of many ranks, the lowest and the highest": [
        [f"loss {9 + (7 * rank) % 5}.5 after {rank} ms", "done"] for rank in range(6)
    ],
    "bars of Keras": [
        ["Epoch 1/3", BAR.format(s=1 + rank, ms=2, loss=f"{47 - rank}.36"), "Epoch 2/3"]
        for rank in range(2)
    ],
    "a rank's own number is no counter": [
        [
            f"[GPU{rank}] Epoch 1 | Steps: 16",
            f"[{rank}] step 5 loss 0.{rank}",
            f"I am rank {rank} of 3",
        ]
        for rank in range(3)
    ],
    "other words are other lines": [
        ["loss 0.1", "a 1 b", "took 5 ms", "v1x 3"],
        ["loss nan", "a 1 c", "took 5 s", "v2x 3"],
    ],
    "steps do not stand with others": [
        [f"step {step} loss 0.{step}" for step in (1, 2, 3)],
        [f"step {step} loss 0.{step}1" for step in (1, 2, 3, 4)],
        [f"step {step} loss 0.{step}2" for step in (3, 4)],
    ],
    "padded, signed, hexadecimal": [
        ["loss   9.5 <M at 0x7f00a1>", "x -1.5e-3 10.0.0.1 .5", "T19:49:35,123 a1b2 2.13"],
        ["loss  10.5 <M at 0x7f00b2>", "x +2 10.0.0.1 0.25", "T19:49:36,007 a1b2 2.14"],
    ],
    "start-up messages, too": [[ABSL, f"I am rank {rank}"] for rank in range(2)],
}
Said = list[tuple[int, str]]


class Case(NamedTuple):
    """Lines in order of arrival, all of one stream, and whether to collapse them by numbers."""

    name: str
    said: Said
    stream: str = "stdout"
    by_numbers: bool = False


def cases() -> Iterator[Case]:
    """The cases written by hand, then random ones."""
    for name, texts in IN_TURN.items():
        yield Case(name, _in_turn(texts))
    for name, texts in STARTUP.items():
        yield Case(name, _in_turn(texts), "stderr")
    for name, texts in NUMBERS.items():
        stream = "stderr" if ABSL in texts[0] else "stdout"
        yield Case(name, _in_turn(texts), stream, by_numbers=True)
    yield from _dice("dice", "abcdef")
    yield from _dice("dice with start-up messages", ["a", "b", ABSL, FLAGS], "stderr")
    yield from _dice("dice with numbers", ["a", "b 1", "b 2", "b 2 3", "b 2 4"], by_numbers=True)


def _in_turn(texts: list[list[str]]) -> Said:
    return [(rank, text) for rank, own in enumerate(texts) for text in own]


def _dice(
    name: str, texts: Sequence[str], stream: str = "stdout", *, by_numbers: bool = False
) -> Iterator[Case]:
    dice = random.Random(15)
    for number in range(60):
        ranks, letters = dice.randint(1, 5), texts[: dice.randint(2, len(texts))]
        said: Said = []
        for _ in range(dice.randint(1, 12)):
            rank = dice.randrange(ranks)
            said += [(rank, dice.choice(letters)) for _ in range(dice.randrange(8))]
        yield Case(f"{name} {number}", said, stream, by_numbers)


def groups(case: Case) -> list[str]:
    """The groups of a case in order, each as `0–1 done`."""
    lines = (Line(rank, case.stream, text) for rank, text in case.said)
    found = collapse(lines, by_numbers=case.by_numbers)
    return [f"{format_ranks(group.ranks)} {group.text}" for group in found]


def text() -> str:
    """The content of collapse.json."""
    made = [{**case._asdict(), "groups": groups(case)} for case in cases()]
    return "[\n" + ",\n".join(json.dumps(case, ensure_ascii=False) for case in made) + "\n]\n"


if __name__ == "__main__":
    FILE.write_text(text(), "utf-8")
