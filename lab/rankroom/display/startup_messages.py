"""TensorFlow's start-up messages on every rank, which a log folds into one line.

They include only what says nothing about the cell: information, and the warnings and errors that
TensorFlow's own builds print on any machine. That a GPU cannot be used stays visible. The view
knows the same ones (`extension/src/log/startup.ts`); tests/support/collapse.json tests both.
"""

from __future__ import annotations

import re

# `2024-08-15 02:53:40.344028: E external/…/cuda_fft.cc:485] …`, and as Abseil writes it:
# `E0000 00:00:1730497080.560232   55183 cuda_dnn.cc:8310] …`.
_STAMP = (
    r"(?:\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: [IWE] (?:\S+/)?"
    r"|[IWE]\d{4} \d\d:\d\d:\d+\.\d+ +\d+ )"
)
_FROM = (
    r"port\.cc:\d+\] oneDNN custom operations are on\.",
    r"cpu_feature_guard\.cc:\d+\] This TensorFlow binary is optimized ",
    r"cudart_stub\.cc:\d+\] Could not find cuda drivers on your machine",
    r"cuda_(?:fft|dnn|blas)\.cc:\d+\] Unable to register cu(?:FFT|DNN|BLAS) factory: ",
    r"computation_placer\.cc:\d+\] computation placer already registered\.",
    r"py_utils\.cc:\d+\] TF-TRT Warning: Could not find TensorRT",
    r"cuda_(?:gpu_)?executor\.cc:\d+\] successful NUMA node read",
    r"cuda_(?:gpu_)?executor\.cc:\d+\] could not open file to read NUMA",
    r"gpu_device\.cc:\d+\] Created device /job:",
    r"cuda_dnn\.cc:\d+\] Loaded cuDNN version ",
    r"service\.cc:\d+\] (?:XLA service 0x[0-9a-f]+ initialized for| +StreamExecutor device \()",
    r"device_compiler\.h:\d+\] Compiled cluster using XLA!",
    r"dump_mlir_util\.cc:\d+\] disabling MLIR crash reproducer",
)
_WHOLE = (
    r"WARNING: All log messages before absl::InitializeLog\(\) is called are written to STDERR",
    r"To enable the following instructions: .{1,400}"
    r"rebuild TensorFlow with the appropriate compiler flags\.",
    r"Your kernel may have been built without NUMA support\.",
)
_KNOWN = re.compile(f"{_STAMP}(?:{'|'.join(_FROM)})|(?:{'|'.join(_WHOLE)})$", re.ASCII)


def is_startup_message(text: str) -> bool:
    """Whether a line of stderr is a start-up message."""
    return _KNOWN.match(text) is not None


def folded_words(lines: int) -> str:
    """Return the line that replaces this many of them."""
    return f"TensorFlow's start-up messages: {lines:,} {'line' if lines == 1 else 'lines'}"
