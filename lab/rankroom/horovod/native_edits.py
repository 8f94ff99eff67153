"""Edits of what is compiled, and how: they make Horovod build on today's frameworks."""

from __future__ import annotations

from rankroom.horovod.edits import Change, Edit
from rankroom.horovod.spans_edits import SPANS
from rankroom.horovod.timeline_edits import TIMELINE

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

# What lets a process go on after a failure, which Horovod was not made for.
RECOVERY = (
    Edit(
        "join-reset",
        "horovod/common/process_set.cc",
        """\
  registered_global_ranks.clear();
  initialization_done = false;
""",
        """\
  registered_global_ranks.clear();
  initialization_done = false;
  joined = false;
  joined_size = 0;
  last_joined_rank = -1;
""",
        "a join() that a failure ended must not be remembered after a new initialisation",
    ),
    Edit(
        "finalize-alone",
        "horovod/common/process_set.cc",
        """\
      InitializeRegisteredAndRemoveMarkedIfReady_(context, status);
      if (ProcessSetHasJustBeenRemoved()) {
        break;
      } else {
""",
        """\
      try {
        InitializeRegisteredAndRemoveMarkedIfReady_(context, status);
      } catch (const std::exception&) {
        // A process is gone: there is nobody left to agree with.
        id_to_process_set_[id].Finalize(status);
        DeregisterProcessSet(id);
        id_to_be_removed_ = NO_PENDING_REMOVAL;
        break;
      }
      if (ProcessSetHasJustBeenRemoved()) {
        break;
      } else {
""",
        "with process sets, a killed rank must not abort those that shut down",
    ),
)

NATIVE: tuple[Change, ...] = BUILD + TIMELINE + SPANS + RECOVERY
