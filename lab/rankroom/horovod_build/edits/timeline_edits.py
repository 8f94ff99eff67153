"""Edits of Horovod's native timeline: on every rank, cheap while idle, and complete."""

from __future__ import annotations

from rankroom.horovod_build.edits.edit import Edit, added

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
    added(
        "timeline-reinit",
        "horovod/common/timeline.cc",
        """\
  cur_filename_.clear();
  new_pending_filename_.clear();
  pending_status_ = false;
""",
        "the old file's name kept a timeline from opening after a new hvd.init()",
        after="    file_.flush();\n    file_.close();\n  }\n",
        before="  tensor_table_.clear();\n",
    ),
    added(
        "timeline-fresh",
        "horovod/common/timeline.cc",
        """\
  if (!filename.empty()) {
    std::lock_guard<std::recursive_mutex> guard(mutex_);
    tensor_states_.clear();
  }
""",
        "a span that the last file left open kept the same tensor's next one from starting",
        after="void Timeline::SetPendingTimelineFile(const std::string& filename) {\n",
    ),
    *(
        Edit(
            f"timeline-whole-{state.lower()}",
            "horovod/common/timeline.cc",
            f"  assert(tensor_states_[tensor_name] == TimelineState::{state});\n",
            f"  if (tensor_states_[tensor_name] != TimelineState::{state}) {{\n    return;\n  }}\n",
            "an operation that was under way when the recording began got ends without beginnings",
            count=count,
        )
        for state, count in (("NEGOTIATING", 2), ("TOP_LEVEL", 1), ("ACTIVITY", 1))
    ),
    added(
        "timeline-whole-end",
        "horovod/common/timeline.cc",
        """\
  if (tensor_states_[tensor_name] != TimelineState::TOP_LEVEL) {
    return;
  }
""",
        "an operation that was under way when the recording began got ends without beginnings",
        before="  nvtx_handle_->EndRange(tensor_name);\n\n  std::stringstream args;\n",
    ),
    Edit(
        "timeline-gpu",
        "horovod/common/timeline.h",
        "inline short Initialized() { return initialized_.fetch_and(1); }",
        "inline short Initialized() { return initialized_.load() && writer_.active(); }",
        "GPU operations wait on the CPU for a timeline's sake: only while one is recorded",
    ),
    Edit(
        "timeline-once",
        "horovod/common/timeline.cc",
        "  if (Initialized()) {\n    return;\n  }\n  start_time_ =",
        "  if (initialized_.load()) {\n    return;\n  }\n  start_time_ =",
        "the edit above makes Initialized() false between two recordings; the clock starts once",
    ),
)
