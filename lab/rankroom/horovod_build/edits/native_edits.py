"""Edits of what is compiled, and how: with them, Horovod builds on today's frameworks."""

from __future__ import annotations

from rankroom.horovod_build.edits.edit import Addition, Change, Edit, added
from rankroom.horovod_build.edits.gloo_edits import GLOO
from rankroom.horovod_build.edits.pace_edits import PACE
from rankroom.horovod_build.edits.recovery_edits import RECOVERY
from rankroom.horovod_build.edits.span_edits import SPANS
from rankroom.horovod_build.edits.timeline_edits import TIMELINE
from rankroom.horovod_build.edits.wait_edits import WAIT

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
        "set(CMAKE_CXX_STANDARD 17)\n"
        '    if(NOT Pytorch_VERSION VERSION_LESS "2.14.0")\n'
        "        set(CMAKE_CXX_STANDARD 20)\n"
        "    endif()",
        "the headers of PyTorch 2 need C++17, from 2.14 on C++20",
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

# Horovod decides by what it finds on the machine; plan.py has decided already.
_CPU_ONLY = "a build for the CPU must not ask for CUDA because PyTorch, or the machine, has it"
CPU_ONLY = (
    Edit(
        "cpu-language",
        "CMakeLists.txt",
        "include(CheckLanguage)\n"
        "check_language(CUDA)\n"
        "if(NOT CMAKE_CUDA_COMPILER)\n"
        "    find_package(CUDAToolkit)\n",
        "include(CheckLanguage)\n"
        "if(DEFINED ENV{HOROVOD_GPU_OPERATIONS})\n"
        "    check_language(CUDA)\n"
        "endif()\n"
        "if(DEFINED ENV{HOROVOD_GPU_OPERATIONS} AND NOT CMAKE_CUDA_COMPILER)\n"
        "    find_package(CUDAToolkit)\n",
        _CPU_ONLY,
    ),
    Edit(
        "cpu-torch",
        "horovod/torch/CMakeLists.txt",
        "elseif (Pytorch_CUDA AND NOT HAVE_CUDA)\n    add_cuda()\nendif()\n",
        "endif()\n",
        _CPU_ONLY,
    ),
    Edit(
        "cpu-torch-headers",
        "cmake/Modules/FindPytorch.cmake",
        "if (Pytorch_CUDA OR Pytorch_ROCM)\n",
        "if ((Pytorch_CUDA AND HAVE_CUDA) OR Pytorch_ROCM)\n",
        _CPU_ONLY,
    ),
)
_ONCE = "what PyTorch's and TensorFlow's library have in common is most of what is compiled"
COMPILE_SHARED_ONCE = (
    added(
        "common",
        "CMakeLists.txt",
        """\
add_library(horovod_common OBJECT ${SOURCES})
target_include_directories(horovod_common PRIVATE
        "${EIGEN_INCLUDE_PATH}" "${FLATBUFFERS_INCLUDE_PATH}")
""",
        _ONCE,
        before="# TF\nadd_subdirectory(horovod/tensorflow)\n",
    ),
    added(
        "common-torch",
        "horovod/torch/CMakeLists.txt",
        "if(Pytorch_CXX11)\n    set(SOURCES $<TARGET_OBJECTS:horovod_common>)\nendif()\n",
        _ONCE,
        before="# Create library\n",
    ),
    added(
        "common-tensorflow",
        "horovod/tensorflow/CMakeLists.txt",
        "if(Tensorflow_CXX11)\n    set(SOURCES $<TARGET_OBJECTS:horovod_common>)\nendif()\n",
        _ONCE,
        before="# Create library\n",
    ),
    Edit(
        "gloo-once",
        "horovod/tensorflow/CMakeLists.txt",
        "    set(Tensorflow_CXX17 TRUE)\n",
        "    set(Tensorflow_CXX17 FALSE)\n",
        "the Gloo that PyTorch's library takes serves TensorFlow's as well: its ABI is the same in "
        "every C++ standard",
    ),
)
_QUICK = "these three edits take 89 of 288 s off the build on two cores"
FASTER_BUILD = (
    added(
        "no-debug-info",
        "CMakeLists.txt",
        """\
foreach(LANGUAGE C CXX CUDA)
    string(REGEX REPLACE " ?-g( |$)" " " CMAKE_${LANGUAGE}_FLAGS_RELWITHDEBINFO
            "${CMAKE_${LANGUAGE}_FLAGS_RELWITHDEBINFO}")
endforeach()
""",
        f"it is four fifths of the libraries, and of no use to users; {_QUICK}",
        before="\n# Add architecture specific optimization flags\n",
    ),
    Edit(
        "tensor-headers",
        "horovod/torch/adapter_v2.h",
        "#include <torch/extension.h>\n#include <torch/torch.h>\n",
        "#include <torch/types.h>\n",
        f"Horovod needs tensors, not all of PyTorch's layers and optimizers; {_QUICK}",
    ),
    Edit(
        "binding-headers",
        "horovod/torch/mpi_ops_v2.cc",
        "#include <torch/extension.h>\n#include <torch/torch.h>\n",
        "#include <torch/types.h>\n#include <torch/csrc/utils/pybind.h>\n",
        f"tensors, and handing them over from Python, are all that is used here; {_QUICK}",
    ),
)
SYMBOLS = (
    Edit(
        "symbols",
        "horovod.lds",
        "    *horovod*;\n",
        "    horovod_*;\n",
        "PyTorch's and TensorFlow's libraries have classes of the same names, of other layouts if "
        "only one has CUDA; exported, those of the first one loaded served both, which crashed",
    ),
)
_CRASHES = "a rank that crashes in native code says in which library"
CRASH: tuple[Change, ...] = (
    Addition("crash-code", "horovod/common/crash.cc", "crash.cc", _CRASHES),
    added(
        "crash-compile",
        "CMakeLists.txt",
        '        "${PROJECT_SOURCE_DIR}/horovod/common/crash.cc"\n',
        "the added file is compiled into every library",
        after='list(APPEND SOURCES "${PROJECT_SOURCE_DIR}/horovod/common/common.cc"\n',
    ),
)

# Without Rankroom's additions: what users would build for themselves, if it built.
PLAIN_NATIVE_EDITS: tuple[Change, ...] = BUILD + CPU_ONLY
NATIVE_EDITS: tuple[Change, ...] = (
    BUILD
    + CPU_ONLY
    + COMPILE_SHARED_ONCE
    + FASTER_BUILD
    + SYMBOLS
    + CRASH
    + TIMELINE
    + SPANS
    + RECOVERY
    + WAIT
    + PACE
    + GLOO
)
