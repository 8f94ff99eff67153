"""Edits of Horovod's native code that let a process go on after a failure, or start again."""

from __future__ import annotations

from rankroom.horovod_build.edits.edit import Edit

_LATE = "a tensor handed over in the moment of a shutdown was waited for without end"

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
    Edit(
        "fixed-again",
        "horovod/common/parameter_manager.cc",
        """\
    ResetBayes();
  } else {
    Eigen::VectorXd v = TunableParameter::BestValue();
""",
        """\
    ResetBayes();
  } else if (fixed_values_.find(variable) != fixed_values_.end()) {
    // An initialisation before this one has fixed it: it has no place in the vectors any more.
    fixed_values_[variable] = value;
  } else {
    Eigen::VectorXd v = TunableParameter::BestValue();
""",
        "with HOROVOD_CYCLE_TIME or HOROVOD_FUSION_THRESHOLD set, a new hvd.init() wrote beyond a "
        "vector's end",
    ),
    Edit(
        "init-raises",
        "horovod/common/operations.cc",
        """\
  {
    global_gloo_context.Initialize(ParseGlooIface());
  }
  if (state.control_operation == LibType::GLOO) {
    // Initializes global controller
    state.process_set_table.Initialize(global_gloo_context);
  }
""",
        """\
  try {
    global_gloo_context.Initialize(ParseGlooIface());
    if (state.control_operation == LibType::GLOO) {
      // Initializes global controller
      state.process_set_table.Initialize(global_gloo_context);
    }
  } catch (const std::exception& ex) {
    LOG(ERROR) << "Horovod could not be initialized: " << ex.what();
    state.process_set_table.Finalize(global_gloo_context, SHUT_DOWN_ERROR);
    global_gloo_context.Finalize();
    state.initialization_failed = true;
    return;
  }
""",
        "a process that did not come, or a connection that broke, ended the process in hvd.init()",
    ),
    Edit(
        "init-again",
        "horovod/common/operations.cc",
        """\
  if (horovod_global.initialization_failed) {
    return false;
  }
""",
        """\
  if (horovod_global.initialization_failed) {
    if (horovod_global.background_thread.joinable()) {
      horovod_global.background_thread.join();
      horovod_global.timeline.Shutdown();
      horovod_global.shut_down = false;
      horovod_global.initialization_failed = false;
      horovod_global.process_set_ranks_to_register.clear();
      horovod_global.initialize_flag.clear();
    }
    return false;
  }
""",
        "after a hvd.init() that failed, every later one failed as well",
    ),
    Edit(
        "gave-up-words",
        "horovod/common/global_state.h",
        """\
  // Pointer to Controller of zero'th ProcessSet
""",
        """\
  // Set when the background thread has ended by an error; the words are written before.
  std::atomic_bool gave_up{false};
  std::string gave_up_words;

  // Pointer to Controller of zero'th ProcessSet
""",
        "that a background thread had given up was reported nowhere",
    ),
    Edit(
        "gave-up-note",
        "horovod/common/operations.cc",
        """\
        << "Horovod background loop uncaught exception: " << ex.what();
""",
        """\
        << "Horovod background loop uncaught exception: " << ex.what();
    state.gave_up_words = ex.what();
    state.gave_up = true;
""",
        "that a background thread had given up was reported nowhere",
    ),
    Edit(
        "gave-up-anew",
        "horovod/common/operations.cc",
        """\
    // Reset initialization flag
    horovod_global.initialization_done = false;
""",
        """\
    // Reset initialization flag
    horovod_global.initialization_done = false;
    horovod_global.gave_up = false;
""",
        "what ended the last one is not this one's",
    ),
    Edit(
        "gave-up-tell",
        "horovod/common/operations.cc",
        """\
int horovod_is_initialized() {
""",
        """\
const char* horovod_gave_up() {
  return horovod_global.gave_up ? horovod_global.gave_up_words.c_str() : "";
}

int horovod_is_initialized() {
""",
        "Python asks here before a cell whether Horovod still runs",
    ),
    Edit(
        "late-member",
        "horovod/common/tensor_queue.h",
        "  void FinalizeTensorQueue(const Status& status);\n",
        "  void FinalizeTensorQueue(const Status& status);\n"
        "  // After it was finalized, nothing is taken in until it is opened again.\n"
        "  void Open();\n",
        _LATE,
    ),
    Edit(
        "late-closed",
        "horovod/common/tensor_queue.h",
        "  mutable std::mutex mutex_;\n",
        "  mutable std::mutex mutex_;\n  bool closed_ = false;\n",
        _LATE,
    ),
    Edit(
        "late-refused",
        "horovod/common/tensor_queue.cc",
        "  if (tensor_table_.find(e.tensor_name) != tensor_table_.end()) {\n",
        "  if (closed_) {\n    return SHUT_DOWN_ERROR;\n  }\n"
        "  if (tensor_table_.find(e.tensor_name) != tensor_table_.end()) {\n",
        _LATE,
    ),
    Edit(
        "late-refused-grouped",
        "horovod/common/tensor_queue.cc",
        "  for (std::size_t i = 0; i < entries.size(); ++i) {\n",
        "  if (closed_) {\n    return SHUT_DOWN_ERROR;\n  }\n"
        "  for (std::size_t i = 0; i < entries.size(); ++i) {\n",
        _LATE,
    ),
    Edit(
        "late-close",
        "horovod/common/tensor_queue.cc",
        """\
void TensorQueue::FinalizeTensorQueue(const Status& status) {
  std::lock_guard<std::mutex> guard(mutex_);
""",
        """\
void TensorQueue::Open() {
  std::lock_guard<std::mutex> guard(mutex_);
  closed_ = false;
}

void TensorQueue::FinalizeTensorQueue(const Status& status) {
  std::lock_guard<std::mutex> guard(mutex_);
  closed_ = true;
""",
        _LATE,
    ),
    Edit(
        "late-open",
        "horovod/common/process_set.cc",
        "  initialization_done = true;\n  return true;\n",
        "  tensor_queue.Open();\n  initialization_done = true;\n  return true;\n",
        _LATE,
        count=2,
    ),
)
