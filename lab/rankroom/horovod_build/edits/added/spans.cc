#include "spans.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "common.h"
#include "message.h"

namespace horovod {
namespace common {
namespace {

enum Kind { COLLECTIVE = 0, PHASE = 1 };

const std::size_t MOST_WAITING = 1 << 18; // spans of one kind that nobody has taken
const std::size_t MOST_NAMES = 50000;     // before names are numbered anew
const std::size_t MOST_PHASES = 64;       // of one tensor, that are found without their description
const long MOST_NUMBERED = 1000; // nameless collectives of a cell with names of their own

struct Span {
  int64_t name;
  int64_t start;
  int64_t dur;
};

struct Phase {
  std::size_t fused;
  std::string name;
  int64_t number;
};

// A tensor of a process set, and the numbers of what was last told of it: a training loop does the
// same again and again, and describing it takes longer than all else that is done for a span.
struct KnownTensor {
  std::string name; // that users know
  int32_t process_set;
  int64_t number = -1; // of a collective that is described by what follows
  Request::RequestType operation;
  DataType dtype;
  int64_t bytes;
  std::vector<int64_t> shape;
  std::vector<Phase> phases;
};

// A collective that this process has come to, and that is not over yet.
struct Open {
  int64_t ticket = 0; // 0: none
  int64_t since = 0;
  int64_t number = -1; // of its description; none if nothing was recorded then
  Request::RequestType operation;
  std::shared_ptr<KnownTensor> tensor;
};

int64_t Now() {
  return std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
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

std::string Netstring(const std::string& line) {
  return std::to_string(line.size()) + ":" + line;
}

} // namespace

// Numbers are never used twice, so that whoever takes spans can keep their names.
class SpanRecorder {
public:
  std::atomic<bool> on{false};

  // A tensor is handed over: remember it, and what a span of it will be called.
  void Arrive(TensorTableEntry& entry, const Request& request) {
    std::lock_guard<std::mutex> guard(mutex_);
    if (free_.empty()) {
      free_.push_back(open_.size());
      open_.emplace_back();
    }
    entry.span_place = free_.back();
    free_.pop_back();
    auto& open = open_[entry.span_place];
    open.tensor = Find(entry.process_set_id, entry.tensor_name);
    open.operation = request.request_type();
    open.number = -1;
    if (on.load(std::memory_order_relaxed)) {
      open.number = Number(*open.tensor, open.operation, entry, request.tensor_shape());
    }
    open.since = Now();
    open.ticket = entry.span_ticket = ++tickets_;
  }

  // Its collective is over, or will never be. Some entries are finished twice.
  void End(const TensorTableEntry& entry) {
    std::lock_guard<std::mutex> guard(mutex_);
    auto open = Find(entry);
    if (open == nullptr) {
      return;
    }
    if (on.load(std::memory_order_relaxed)) {
      auto end = Now();
      if (open->number < 0) {
        auto shape = entry.tensor != nullptr ? entry.tensor->shape() : TensorShape();
        open->number = Number(*open->tensor, open->operation, entry, shape.to_vector());
      }
      Add(COLLECTIVE, open->number, open->since, end);
    }
    open->ticket = 0;
    open->tensor.reset();
    free_.push_back(entry.span_place);
  }

  // A part of what is done for these tensors; since the first of them came if no start is given.
  void AddPhase(const std::vector<TensorTableEntry>& entries, const std::string& name,
                int64_t start) {
    auto now = Now();
    std::lock_guard<std::mutex> guard(mutex_);
    // Tensors that were fused share their phases.
    auto first = Find(entries[0]);
    if (first == nullptr) {
      return;
    }
    if (start == 0) {
      start = now;
      for (auto& each : entries) {
        auto open = each.spans == this ? Find(each) : nullptr;
        start = open != nullptr ? std::min(start, open->since) : start;
      }
    }
    Add(PHASE, Number(*first->tensor, name, entries.size()), start, now);
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

  int64_t TellOpen(char* out, int64_t most) {
    std::lock_guard<std::mutex> guard(mutex_);
    int64_t count = 0;
    for (auto& each : open_) {
      if (each.ticket == 0) {
        continue;
      }
      auto text = Netstring(std::to_string(each.since) + " " +
                            Request::RequestType_Name(each.operation) + " " +
                            std::to_string(each.tensor->process_set) + " " + each.tensor->name);
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
  void Add(Kind kind, int64_t number, int64_t start, int64_t end) {
    auto& waiting = waiting_[kind];
    if (waiting.size() >= MOST_WAITING) {
      ++dropped_;
      return;
    }
    waiting.push_back({number, start, std::max<int64_t>(0, end - start)});
  }

  Open* Find(const TensorTableEntry& entry) {
    auto& open = open_[entry.span_place];
    return entry.span_ticket != 0 && open.ticket == entry.span_ticket ? &open : nullptr;
  }

  std::shared_ptr<KnownTensor> Find(int32_t process_set, const std::string& raw) {
    auto& known = tensors_[process_set];
    auto found = known.find(raw);
    if (found != known.end()) {
      return found->second;
    }
    auto name = TensorName(raw);
    // Those without a name have a new one each time.
    auto& key = name.compare(0, 1, "#") == 0 ? name : raw;
    found = known.find(key);
    if (found != known.end()) {
      return found->second;
    }
    auto made = std::make_shared<KnownTensor>();
    made->name = name;
    made->process_set = process_set;
    if (++tensors_known_ > MOST_NAMES) {
      Forget();
    }
    tensors_[process_set].emplace(key, made);
    return made;
  }

  int64_t Number(KnownTensor& tensor, Request::RequestType operation,
                 const TensorTableEntry& entry, const std::vector<int64_t>& shape) {
    auto bytes = entry.tensor != nullptr ? (int64_t)entry.tensor->size() : -1;
    auto dtype = entry.tensor != nullptr ? entry.tensor->dtype() : DataType::HOROVOD_UINT8;
    if (tensor.number >= 0 && tensor.operation == operation && tensor.bytes == bytes &&
        tensor.dtype == dtype && tensor.shape == shape) {
      return tensor.number;
    }
    tensor.operation = operation;
    tensor.bytes = bytes;
    tensor.dtype = dtype;
    tensor.shape = shape;
    auto text = "collective " + Request::RequestType_Name(operation) + " " +
                std::to_string(tensor.process_set);
    if (bytes >= 0) {
      text += " " + std::to_string(bytes) + " " + DataType_Name(dtype) + " [";
      for (std::size_t i = 0; i < shape.size(); ++i) {
        text += (i ? "," : "") + std::to_string(shape[i]);
      }
      text += "]";
    } else {
      text += " - - -";
    }
    return tensor.number = Number(text + " " + tensor.name);
  }

  int64_t Number(KnownTensor& tensor, const std::string& name, std::size_t fused) {
    for (auto& each : tensor.phases) {
      if (each.fused == fused && each.name == name) {
        return each.number;
      }
    }
    auto number = Number("phase " + name + " " + std::to_string(fused) + " " +
                         std::to_string(tensor.process_set) + " " + tensor.name);
    if (tensor.phases.size() < MOST_PHASES) {
      tensor.phases.push_back({fused, name, number});
    }
    return number;
  }

  int64_t Number(const std::string& description) {
    auto found = numbers_.find(description);
    if (found != numbers_.end()) {
      return found->second;
    }
    if (numbers_.size() >= MOST_NAMES) {
      Forget();
    }
    numbers_.emplace(description, ++last_);
    // As a netstring: a tensor's name may hold any byte.
    names_ += Netstring(std::to_string(last_) + " " + description);
    return last_;
  }

  // Number all anew, also what tensors remember; those that are open keep theirs until they end.
  void Forget() {
    numbers_.clear();
    tensors_.clear();
    tensors_known_ = 0;
  }

  std::mutex mutex_;
  std::vector<Span> waiting_[2];
  std::unordered_map<std::string, int64_t> numbers_;
  std::unordered_map<int32_t, std::unordered_map<std::string, std::shared_ptr<KnownTensor>>> tensors_;
  std::size_t tensors_known_ = 0;
  std::vector<Open> open_;
  std::vector<std::size_t> free_; // places in it
  int64_t tickets_ = 0;
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

// A rank that has joined takes part with zeros in what it never called.
bool Recorded(const std::vector<TensorTableEntry>& entries) {
  return !entries.empty() && entries[0].spans != nullptr &&
         entries[0].spans->on.load(std::memory_order_relaxed);
}

struct Activity {
  std::string name;
  int64_t start = 0;
};

thread_local Activity activity;

} // namespace

void SpanArrive(TensorTableEntry& entry, const Request& request) {
  entry.spans = &recorder();
  entry.spans->Arrive(entry, request);
}

void SpanBegin(const std::vector<TensorTableEntry>& entries) {
  static const std::string negotiate("NEGOTIATE");
  if (Recorded(entries)) {
    entries[0].spans->AddPhase(entries, negotiate, 0);
  }
}

void SpanActivity(const std::string& name) {
  activity.name.assign(name);
  activity.start = Now();
}

void SpanActivityEnd(const std::vector<TensorTableEntry>& entries) {
  if (activity.start != 0) {
    if (Recorded(entries)) {
      entries[0].spans->AddPhase(entries, activity.name, activity.start);
    }
    activity.start = 0;
  }
}

void SpanEnd(const TensorTableEntry& entry) {
  if (entry.spans != nullptr) {
    entry.spans->End(entry);
  }
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
