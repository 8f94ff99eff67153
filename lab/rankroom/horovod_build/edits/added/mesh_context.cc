#include "mesh_context.h"

#include <random>
#include <stdexcept>
#include <string>

#include "gloo/transport/address.h"
#include "gloo/transport/context.h"
#include "gloo/transport/device.h"
#include "gloo/transport/pair.h"
#ifdef __linux__
#include "gloo/transport/tcp/context.h"
#endif

namespace horovod {
namespace common {

namespace {

// Says on a connection that it is one of the mesh: others on this machine, or on its network, may
// connect to the port of a rank as well.
constexpr std::size_t GREETING = 16;

std::vector<char> NewGreeting() {
  std::random_device random;
  std::vector<char> greeting;
  while (greeting.size() < GREETING) {
    greeting.push_back(static_cast<char>(random()));
  }
  return greeting;
}

} // namespace

void MeshContext::Connect(GlooStore& store,
                          std::shared_ptr<gloo::transport::Device>& device) {
  auto transport = device->createContext(rank, size);
  transport->setTimeout(getTimeout());
  std::vector<char> mine;
  std::size_t length = 0;
  for (int i = 0; i < size; ++i) {
    if (i != rank) {
      auto address = transport->createPair(i)->address().bytes();
      length = address.size();
      mine.insert(mine.end(), address.begin(), address.end());
    }
  }
  if (size > 1) {
    auto told = Exchange(store, mine, length);
    auto at = told.begin() + GREETING;
#ifdef __linux__
    static_cast<gloo::transport::tcp::Context&>(*transport).greeting.assign(told.begin(), at);
#endif
    for (int i = 0; i < size; ++i) {
      if (i != rank) {
        transport->getPair(i)->connect(std::vector<char>(at, at + length));
        at += length;
      }
    }
  }
  device_ = device;
  transportContext_ = std::move(transport);
}

void MeshContext::SetPatience(std::chrono::milliseconds time) {
  setTimeout(time);
  transportContext_->setTimeout(time);
}

std::vector<char> MeshContext::Exchange(GlooStore& store, const std::vector<char>& mine,
                                        std::size_t length) {
  auto read = [&](const std::string& key, std::size_t bytes) {
    store.wait({key}, getTimeout());
    auto value = store.get(key);
    if (value.size() != bytes) {
      throw std::runtime_error("The rendezvous store has " + std::to_string(value.size()) +
                               " bytes of addresses under " + key + " in place of " +
                               std::to_string(bytes));
    }
    return value;
  };
  if (rank > 0) {
    store.set(std::to_string(rank), mine);
    return read("to_" + std::to_string(rank), GREETING + mine.size());
  }
  std::vector<std::vector<char>> all{mine};
  for (int i = 1; i < size; ++i) {
    all.push_back(read(std::to_string(i), mine.size()));
  }
  const auto greeting = NewGreeting();
  std::vector<char> own;
  for (int to = 0; to < size; ++to) {
    auto addresses = greeting;
    for (int from = 0; from < size; ++from) {
      if (from != to) {
        auto at = all[from].begin() + length * (to < from ? to : to - 1);
        addresses.insert(addresses.end(), at, at + length);
      }
    }
    if (to == 0) {
      own = std::move(addresses);
    } else {
      store.set("to_" + std::to_string(to), addresses);
    }
  }
  return own;
}

} // namespace common
} // namespace horovod
