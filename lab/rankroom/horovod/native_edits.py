"""Edits of what is compiled, and how: they make Horovod build on today's frameworks."""

from __future__ import annotations

from rankroom.horovod.edits import Change, Edit
from rankroom.horovod.recovery_edits import RECOVERY
from rankroom.horovod.rest_edits import REST
from rankroom.horovod.spans_edits import SPANS
from rankroom.horovod.timeline_edits import TIMELINE
from rankroom.horovod.wait_edits import WAIT

BUILD = (
    Edit(
        "cxx17",
        "CMakeLists.txt",
        "set(CMAKE_CXX_STANDARD 14)",
        "set(CMAKE_CXX_STANDARD 17)",
        "the headers of PyTorch 2 need C++17",
    ),
    Edit(
        "cxx17-torch",
        "horovod/torch/CMakeLists.txt",
        "set(CMAKE_CXX_STANDARD 14)",
        "set(CMAKE_CXX_STANDARD 17)",
        "the headers of PyTorch 2 need C++17",
    ),
    Edit(
        "cxx17-cuda",
        "horovod/common/ops/cuda/CMakeLists.txt",
        "set(CMAKE_CUDA_STANDARD 11)",
        "set(CMAKE_CUDA_STANDARD 17)",
        "CUDA 13's own headers need C++17",
    ),
    Edit(
        "cstdint",
        "CMakeLists.txt",
        "-pthread -fPIC -Wall -ftree-vectorize",
        "-pthread -fPIC -Wall -ftree-vectorize -include cstdint",
        "GCC 13 no longer includes <cstdint> by way of other headers; Gloo relied on that",
    ),
    Edit(
        "no-xla",
        "horovod/tensorflow/CMakeLists.txt",
        'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")\n',
        "",
        "TensorFlow no longer ships the headers the XLA operations need; they are optional",
    ),
    Edit(
        "python-include",
        "horovod/torch/CMakeLists.txt",
        "from distutils.sysconfig import get_python_inc; print(get_python_inc())",
        "import sysconfig; print(sysconfig.get_path('include'))",
        "Python 3.12 has no distutils",
    ),
    Edit(
        "gloo-cmake4",
        "third_party/gloo/CMakeLists.txt",
        "cmake_minimum_required(VERSION 2.8.12 FATAL_ERROR)",
        "cmake_minimum_required(VERSION 3.13 FATAL_ERROR)",
        "CMake 4 refuses projects that ask for less than 3.5",
    ),
)

NATIVE: tuple[Change, ...] = BUILD + TIMELINE + SPANS + RECOVERY + WAIT + REST
