#include "mesh_context.h"

#include <stdexcept>
#include <string>

#include "gloo/transport/address.h"
#include "gloo/transport/context.h"
#include "gloo/transport/device.h"
#include "gloo/transport/pair.h"

namespace horovod {
namespace common {

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
    auto theirs = Exchange(store, mine, length);
    auto at = theirs.begin();
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
  auto read = [&](const std::string& key) {
    store.wait({key}, getTimeout());
    auto value = store.get(key);
    if (value.size() != mine.size()) {
      throw std::runtime_error("The rendezvous store has " + std::to_string(value.size()) +
                               " bytes of addresses under " + key + " in place of " +
                               std::to_string(mine.size()));
    }
    return value;
  };
  if (rank > 0) {
    store.set(std::to_string(rank), mine);
    return read("to_" + std::to_string(rank));
  }
  std::vector<std::vector<char>> all{mine};
  for (int i = 1; i < size; ++i) {
    all.push_back(read(std::to_string(i)));
  }
  std::vector<char> own;
  for (int to = 0; to < size; ++to) {
    std::vector<char> addresses;
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
