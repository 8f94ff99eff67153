"""Edits of Horovod's native code that let a process continue after a failure, or start again."""

from __future__ import annotations

from rankroom.horovod_build.edits.edit import Edit, added

_OPEN = (
    "a process that had given up kept its connections open, and others waited for it without end"
)
_LATE = "a tensor handed over in the moment of a shutdown was waited for without end"

RECOVERY = (
    added(
        "join-reset",
        "horovod/common/process_set.cc",
        "  joined = false;\n  joined_size = 0;\n  last_joined_rank = -1;\n",
        "a join() that a failure ended must not be remembered after a new initialisation",
        after="  registered_global_ranks.clear();\n  initialization_done = false;\n",
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
    added(
        "abandon-flag",
        "horovod/common/process_set.h",
        """\
  // The background thread has ended by an error: nothing is agreed on with others any more.
  std::atomic_bool gave_up{false};

""",
        _OPEN,
        before="  // Guard access to the table by this mutex\n",
    ),
    added(
        "abandon-member",
        "horovod/common/process_set.h",
        """\
  // Close the connections, by which others see that nothing comes from here any more. In an orderly
  // shutdown they stay: others may still read what was sent.
  void Abandon();

""",
        _OPEN,
        after="  void Finalize(const Status& status);\n\n",
        before="  bool IsCurrentProcessIncluded() const;\n",
    ),
    added(
        "abandon-set",
        "horovod/common/process_set.cc",
        """\
void ProcessSet::Abandon() {
#if HAVE_GLOO
  gloo_context.ctx.reset();
  gloo_context.local_ctx.reset();
  gloo_context.cross_ctx.reset();
  gloo_context.global_ctx.reset();
#endif // HAVE_GLOO
}

""",
        _OPEN,
        before="bool ProcessSet::IsCurrentProcessIncluded() const {\n",
    ),
    added(
        "abandon-sets",
        "horovod/common/process_set.cc",
        """\
    if (gave_up) {
      id_to_process_set_[id].Finalize(status);
      id_to_process_set_[id].Abandon();
      DeregisterProcessSet(id);
      id_to_be_removed_ = NO_PENDING_REMOVAL;
      continue;
    }
""",
        "with process sets, one that had given up waited for the others, and its whole Python with "
        "it, before it failed what was handed over",
        after="""\
        << "Finalizing ProcessSetTable, process set id: " << id;
""",
        before="    MarkProcessSetForRemoval(id);\n",
    ),
    added(
        "abandon-all",
        "horovod/common/process_set.cc",
        """\
  if (gave_up) {
    id_to_process_set_[0].Abandon();
    gave_up = false;
  }
""",
        _OPEN,
        after="  id_to_process_set_[0].Finalize(status);\n",
    ),
    added(
        "fixed-again",
        "horovod/common/parameter_manager.cc",
        """\
  } else if (fixed_values_.find(variable) != fixed_values_.end()) {
    // An initialisation before this one has fixed it: it has no place in the vectors any more.
    fixed_values_[variable] = value;
""",
        "with HOROVOD_CYCLE_TIME or HOROVOD_FUSION_THRESHOLD set, a new hvd.init() wrote beyond a "
        "vector's end",
        after="    ResetBayes();\n",
        before="  } else {\n    Eigen::VectorXd v = TunableParameter::BestValue();\n",
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
    state.process_set_table.gave_up = true;
    state.process_set_table.Finalize(global_gloo_context, SHUT_DOWN_ERROR);
    global_gloo_context.Finalize();
    state.initialization_failed = true;
    return;
  }
""",
        "a process that did not come, or a connection that broke, ended the process in hvd.init()",
    ),
    added(
        "init-abandon",
        "horovod/common/operations.cc",
        "    state.process_set_table.gave_up = true;\n",
        _OPEN,
        before="    state.initialization_failed = true;\n    goto shutdown;\n",
    ),
    added(
        "init-again",
        "horovod/common/operations.cc",
        """\
    if (horovod_global.background_thread.joinable()) {
      horovod_global.background_thread.join();
      horovod_global.timeline.Shutdown();
      horovod_global.shut_down = false;
      horovod_global.initialization_failed = false;
      horovod_global.process_set_ranks_to_register.clear();
      horovod_global.initialize_flag.clear();
    }
""",
        "after a hvd.init() that failed, every later one failed as well",
        after="  if (horovod_global.initialization_failed) {\n",
        before="    return false;\n  }\n",
    ),
    added(
        "gave-up-words",
        "horovod/common/global_state.h",
        """\
  // Set when the background thread has ended by an error; the words are written before.
  std::atomic_bool gave_up{false};
  std::string gave_up_words;

""",
        "that a background thread had given up was reported nowhere",
        before="  // Pointer to Controller of zero'th ProcessSet\n",
    ),
    added(
        "gave-up-note",
        "horovod/common/operations.cc",
        "    state.gave_up_words = ex.what();\n    state.gave_up = true;\n"
        "    state.process_set_table.gave_up = true;\n",
        "that a background thread had given up was reported nowhere",
        after='        << "Horovod background loop uncaught exception: " << ex.what();\n',
    ),
    added(
        "gave-up-anew",
        "horovod/common/operations.cc",
        "    horovod_global.gave_up = false;\n",
        "what ended the last one is not this one's",
        after="    // Reset initialization flag\n    horovod_global.initialization_done = false;\n",
    ),
    added(
        "gave-up-tell",
        "horovod/common/operations.cc",
        """\
const char* horovod_gave_up() {
  return horovod_global.gave_up ? horovod_global.gave_up_words.c_str() : "";
}

""",
        "Python asks here before a cell whether Horovod still runs",
        before="int horovod_is_initialized() {\n",
    ),
    added(
        "late-member",
        "horovod/common/tensor_queue.h",
        "  // After it was finalized, nothing is taken in until it is opened again.\n"
        "  void Open();\n",
        _LATE,
        after="  void FinalizeTensorQueue(const Status& status);\n",
    ),
    added(
        "late-closed",
        "horovod/common/tensor_queue.h",
        "  bool closed_ = false;\n",
        _LATE,
        after="  mutable std::mutex mutex_;\n",
    ),
    added(
        "late-refused",
        "horovod/common/tensor_queue.cc",
        "  if (closed_) {\n    return SHUT_DOWN_ERROR;\n  }\n",
        _LATE,
        before="  if (tensor_table_.find(e.tensor_name) != tensor_table_.end()) {\n",
    ),
    added(
        "late-refused-grouped",
        "horovod/common/tensor_queue.cc",
        "  if (closed_) {\n    return SHUT_DOWN_ERROR;\n  }\n",
        _LATE,
        before="  for (std::size_t i = 0; i < entries.size(); ++i) {\n",
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
    added(
        "late-open",
        "horovod/common/process_set.cc",
        "  tensor_queue.Open();\n",
        _LATE,
        before="  initialization_done = true;\n  return true;\n",
        count=2,
    ),
)
