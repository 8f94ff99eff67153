"""Edits of what is compiled: they make Horovod build today, and give every rank its timeline."""

from __future__ import annotations

from rankroom.horovod.edits import Change, Edit

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

RANK_FILE = """\
// The timeline file of one rank: `{rank}` in the path stands for its number; without that, rank 0
// keeps the path and every other rank appends its number, so that no two ranks share a file.
static std::string TimelineFileOfRank(std::string path, int rank) {
  const std::string mark = "{rank}";
  auto at = path.find(mark);
  if (at != std::string::npos) {
    return path.replace(at, mark.size(), std::to_string(rank));
  }
  return rank == 0 ? path : path + ".rank" + std::to_string(rank);
}

"""

TIMELINE = (
    Edit(
        "timeline-file",
        "horovod/common/operations.cc",
        "bool RunLoopOnce(HorovodGlobalState& state);\n",
        RANK_FILE + "bool RunLoopOnce(HorovodGlobalState& state);\n",
        "ranks that are given one path must not write into one file",
    ),
    Edit(
        "timeline-init",
        "horovod/common/operations.cc",
        """\
    if (is_coordinator) {
      auto horovod_timeline = std::string(timeline_env);
      if (horovod_timeline != "DYNAMIC") {
        state.timeline.Initialize(horovod_timeline,
""",
        """\
    {
      auto horovod_timeline = std::string(timeline_env);
      if (horovod_timeline != "DYNAMIC") {
        state.timeline.Initialize(TimelineFileOfRank(horovod_timeline,
                                      state.global_controller->GetRank()),
""",
        "only rank 0 opened a timeline; the lanes under a cell need every rank's",
    ),
    Edit(
        "timeline-start",
        "horovod/common/operations.cc",
        """\
  bool is_coordinator = horovod_global.global_controller->IsCoordinator();
  if (is_coordinator) {
    horovod_global.timeline.Initialize(
        std::string(file_name), horovod_global.global_controller->GetSize());
    horovod_global.timeline.SetPendingTimelineFile(std::string(file_name));
  }
""",
        """\
  auto file = TimelineFileOfRank(
      file_name, horovod_global.global_controller->GetRank());
  horovod_global.timeline.Initialize(
      file, horovod_global.global_controller->GetSize());
  horovod_global.timeline.SetPendingTimelineFile(file);
""",
        "hvd.start_timeline() did nothing on any rank but 0",
    ),
    Edit(
        "timeline-stop",
        "horovod/common/operations.cc",
        """\
  bool is_coordinator = horovod_global.global_controller->IsCoordinator();
  if (is_coordinator) {
    horovod_global.timeline.SetPendingTimelineFile(std::string(""));
  }
""",
        """\
  horovod_global.timeline.SetPendingTimelineFile(std::string(""));
""",
        "hvd.stop_timeline() did nothing on any rank but 0",
    ),
    Edit(
        "timeline-idle",
        "horovod/common/timeline.cc",
        """\
    // Allow scheduler to schedule other work for this core.
    std::this_thread::yield();
""",
        """\
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
""",
        "the writer thread spun: a timeline on every rank would cost a core per rank, even idle",
    ),
    Edit(
        "timeline-queue",
        "horovod/common/timeline.h",
        "boost::lockfree::capacity<1048576>",
        "boost::lockfree::capacity<65536>",
        "the ring buffer grows to its capacity and stays: 180 MB per rank for a million records",
    ),
    Edit(
        "timeline-drain",
        "horovod/common/timeline.cc",
        """\
  while (healthy()) {
    while (healthy() && !record_queue_.empty()) {
""",
        """\
  while (healthy() || !record_queue_.empty()) {
    while (!record_queue_.empty()) {
""",
        "hvd.shutdown() dropped the events that were still queued",
    ),
    Edit(
        "timeline-reinit",
        "horovod/common/timeline.cc",
        """\
    file_.flush();
    file_.close();
  }
  tensor_table_.clear();
""",
        """\
    file_.flush();
    file_.close();
  }
  cur_filename_.clear();
  new_pending_filename_.clear();
  pending_status_ = false;
  tensor_table_.clear();
""",
        "the old file's name kept a timeline from opening after a new hvd.init()",
    ),
)

NATIVE: tuple[Change, ...] = BUILD + TIMELINE
