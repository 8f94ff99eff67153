#include "spans.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "common.h"

namespace horovod {
namespace common {
namespace {

enum Kind { COLLECTIVE = 0, PHASE = 1 };

const std::size_t MOST_WAITING = 1 << 18; // spans of one kind that nobody has taken
const std::size_t MOST_NAMES = 50000;     // before names are numbered anew
const long MOST_NUMBERED = 1000; // nameless collectives of a cell with names of their own

struct Span {
  int64_t name;
  int64_t start;
  int64_t dur;
};

struct Handed {
  std::string description;
  int64_t since;
};

} // namespace

// Numbers are never used twice, so that whoever takes spans can keep their names.
class SpanRecorder {
public:
  std::atomic<bool> on{false};

  void Add(Kind kind, const std::string& key, const std::string& description,
           const std::string& tensor, int64_t start, int64_t end) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto& waiting = waiting_[kind];
    if (waiting.size() >= MOST_WAITING) {
      ++dropped_;
      return;
    }
    auto found = numbers_.find(key);
    if (found == numbers_.end()) {
      if (numbers_.size() >= MOST_NAMES) {
        numbers_.clear();
      }
      found = numbers_.emplace(key, ++last_).first;
      // As a netstring: a tensor's name may hold any byte.
      auto line = std::to_string(last_) + " " + description + " " + tensor;
      names_ += std::to_string(line.size()) + ":" + line;
    }
    waiting.push_back({found->second, start, std::max<int64_t>(0, end - start)});
  }

  int64_t Take(int kind, int64_t* out, int64_t most) {
    if (kind < COLLECTIVE || kind > PHASE) {
      return 0;
    }
    std::lock_guard<std::mutex> guard(mutex_);
    auto& waiting = waiting_[kind];
    auto count = std::min<int64_t>(most, waiting.size());
    std::memcpy(out, waiting.data(), count * sizeof(Span));
    waiting.erase(waiting.begin(), waiting.begin() + count);
    return count;
  }

  int64_t TakeNames(char* out, int64_t most) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto count = std::min<int64_t>(most, names_.size());
    std::memcpy(out, names_.data(), count);
    names_.erase(0, count);
    return count;
  }

  // A tensor is handed over, and its collective is over. Names are unique while they are open.
  void Open(const std::string& key, const std::string& description,
            int64_t since) {
    std::lock_guard<std::mutex> guard(mutex_);
    open_[key] = {description, since};
  }

  void Close(const std::string& key) {
    std::lock_guard<std::mutex> guard(mutex_);
    open_.erase(key);
  }

  int64_t TellOpen(char* out, int64_t most) {
    std::lock_guard<std::mutex> guard(mutex_);
    int64_t count = 0;
    for (auto& each : open_) {
      auto line = std::to_string(each.second.since) + " " +
                  each.second.description;
      auto text = std::to_string(line.size()) + ":" + line;
      if (count + (int64_t)text.size() > most) {
        break;
      }
      std::memcpy(out + count, text.data(), text.size());
      count += text.size();
    }
    return count;
  }

  int64_t TakeDropped() {
    std::lock_guard<std::mutex> guard(mutex_);
    auto dropped = dropped_;
    dropped_ = 0;
    return dropped;
  }

private:
  std::mutex mutex_;
  std::vector<Span> waiting_[2];
  std::unordered_map<std::string, int64_t> numbers_;
  std::unordered_map<std::string, Handed> open_;
  std::string names_;
  int64_t last_ = -1;
  int64_t dropped_ = 0;
};

namespace {

// Never deleted: threads may still end operations while the process exits.
SpanRecorder& recorder() {
  static SpanRecorder* one = new SpanRecorder();
  return *one;
}

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// A rank that has joined takes part with zeros in what it never called.
bool Recorded(const TensorTableEntry& entry) {
  return entry.spans != nullptr &&
         entry.spans->on.load(std::memory_order_relaxed);
}

// The name that users know: without the operation that torch's library puts before it, and #n for
// the n-th of those without a name.
std::string TensorName(const std::string& name) {
  static const char* operations[] = {"allreduce", "allgather", "broadcast",
                                     "alltoall", "reducescatter"};
  if (name == JOIN_TENSOR_NAME || name == BARRIER_TENSOR_NAME) {
    return "";
  }
  std::size_t at = name.compare(0, 8, "grouped_") == 0 ? 8 : 0;
  std::size_t begin = 0;
  for (auto operation : operations) {
    auto length = std::strlen(operation);
    if (name.compare(at, length, operation) == 0 && name.size() > at + length &&
        name[at + length] == '.') {
      begin = at + length + 1;
    }
  }
  if (name.compare(begin, 7, "noname.") == 0) {
    auto last = name.rfind('.');
    auto number = std::strtol(name.c_str() + last + 1, nullptr, 10);
    return number > MOST_NUMBERED ? "#" : "#" + name.substr(last + 1);
  }
  return name.substr(begin);
}

struct Activity {
  std::string name;
  int64_t start = 0;
};

thread_local Activity activity;
thread_local std::string key;

void AddPhase(const std::vector<TensorTableEntry>& entries,
              const std::string& name, int64_t start) {
  // Tensors that were fused share their phases.
  auto& first = entries[0];
  auto tensor = TensorName(first.tensor_name);
  auto description = "phase " + name + " " + std::to_string(entries.size()) +
                     " " + std::to_string(first.process_set_id);
  key.assign(description).append(1, ' ').append(tensor);
  first.spans->Add(PHASE, key, description, tensor, start, Now());
}

} // namespace

static std::string OpenKey(const TensorTableEntry& entry) {
  return std::to_string(entry.process_set_id) + " " + entry.tensor_name;
}

void SpanArrive(TensorTableEntry& entry, const Request& request) {
  entry.spans = &recorder();
  entry.arrived = Now();
  entry.request_type = request.request_type();
  auto operation =
      Request::RequestType_Name((Request::RequestType)entry.request_type);
  entry.spans->Open(OpenKey(entry),
                    operation + " " + std::to_string(entry.process_set_id) +
                        " " + TensorName(entry.tensor_name),
                    entry.arrived);
}

void SpanBegin(const std::vector<TensorTableEntry>& entries) {
  if (entries.empty() || !Recorded(entries[0])) {
    return;
  }
  auto first = entries[0].arrived;
  for (auto& e : entries) {
    first = std::min(first, e.arrived);
  }
  AddPhase(entries, "NEGOTIATE", first);
}

void SpanActivity(const std::string& name) {
  activity.name.assign(name);
  activity.start = Now();
}

void SpanActivityEnd(const std::vector<TensorTableEntry>& entries) {
  if (activity.start != 0) {
    if (!entries.empty() && Recorded(entries[0])) {
      AddPhase(entries, activity.name, activity.start);
    }
    activity.start = 0;
  }
}

void SpanEnd(const TensorTableEntry& entry) {
  if (entry.spans != nullptr) {
    entry.spans->Close(OpenKey(entry));
  }
  // The entry of a join is finished twice, the second time without its name.
  if (!Recorded(entry) || entry.tensor_name.empty()) {
    return;
  }
  auto end = Now();
  std::string description =
      "collective " +
      Request::RequestType_Name((Request::RequestType)entry.request_type) +
      " " + std::to_string(entry.process_set_id);
  if (entry.tensor != nullptr) {
    description += " " + std::to_string(entry.tensor->size()) + " " +
                   DataType_Name(entry.tensor->dtype()) + " [";
    const auto shape = entry.tensor->shape();
    auto& dims = shape.to_vector();
    for (std::size_t i = 0; i < dims.size(); ++i) {
      description += (i ? "," : "") + std::to_string(dims[i]);
    }
    description += "]";
  } else {
    description += " - - -";
  }
  auto tensor = TensorName(entry.tensor_name);
  key.assign(description).append(1, ' ').append(tensor);
  entry.spans->Add(COLLECTIVE, key, description, tensor, entry.arrived, end);
}

} // namespace common
} // namespace horovod

extern "C" {

void horovod_record_spans(int on) {
  horovod::common::recorder().on.store(on != 0);
}

// The oldest spans of a kind (0: collectives, 1: phases), three numbers each: name, start, duration.
int64_t horovod_take_spans(int kind, int64_t* out, int64_t most) {
  return horovod::common::recorder().Take(kind, out, most);
}

// Bytes of what the names' numbers stand for, in netstrings; after the spans that use them.
int64_t horovod_take_span_names(char* out, int64_t most) {
  return horovod::common::recorder().TakeNames(out, most);
}

// What was handed over and is not over yet, as far as there is room: netstrings of
// `SINCE OPERATION SET TENSOR`.
int64_t horovod_tell_open(char* out, int64_t most) {
  return horovod::common::recorder().TellOpen(out, most);
}

// How many spans nobody took in time since the last call.
int64_t horovod_take_spans_dropped() {
  return horovod::common::recorder().TakeDropped();
}

} // extern "C"
