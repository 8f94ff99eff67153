"""Edits of how two ranks connect in Gloo: the connecting rank first identifies itself.

`added/mesh_context.cc` gives all ranks of a mesh the same greeting. Without one, Gloo works as
before.
"""

from __future__ import annotations

from rankroom.horovod_build.edits.edit import Change, Edit, added

TCP = "third_party/gloo/gloo/transport/tcp/"
_REASON = (
    "a rank took what connected to its port first for the other rank: a client that looks for a "
    "server that is gone, or another user; the two ranks did not meet then"
)

GREETING: tuple[Change, ...] = (
    added(
        "greeting-text",
        TCP + "context.h",
        """\
  // What the connecting side of each pair says first; empty if nothing.
  std::string greeting;

""",
        _REASON,
        after="      size_t size) override;\n\n",
        before=" protected:\n  std::shared_ptr<Device> device_;\n",
    ),
    added(
        "greeting-include",
        TCP + "context.h",
        "#include <string>\n",
        _REASON,
        after="#include <mutex>\n",
        before="#include <tuple>\n",
    ),
    added(
        "greeting-declare",
        TCP + "pair.h",
        """\
  // A connection that was accepted, and has not said yet that it is the peer's.
  struct Arrival final : public Handler {
    Arrival(Pair* pair, int fd) : pair(pair), fd(fd) {}

    void handleEvents(int /* unused */) override {
      pair->handleArrival(*this);
    }

    Pair* const pair;
    int fd;
  };

  // They stay until the pair is gone: the loop may hold an event of one that is closed.
  std::list<Arrival> arrivals_;

  // Sees whether it is the peer; called from the device's thread.
  void handleArrival(Arrival& arrival);

  void closeArrival(Arrival& arrival);

  void closeArrivals();

  // Makes an accepted connection the pair's; the pair mutex is held.
  void adopt(int fd);

""",
        _REASON,
        before=(
            "  // Finishes connection setup if this side of the pair is on the\n"
            "  // connecting side"
        ),
    ),
    Edit(
        "greeting-listen",
        TCP + "pair.cc",
        """\
  changeState(LISTENING);
  device_->registerDescriptor(fd_, EPOLLIN, this);
""",
        """\
  // once connect() has been told what the peer will say.
  setSocketBlocking(fd_, false);
  changeState(LISTENING);
  device_->registerDescriptor(fd_, 0, this);
""",
        _REASON,
    ),
    added(
        "greeting-await",
        TCP + "pair.cc",
        "    device_->registerDescriptor(fd_, EPOLLIN, this);\n",
        _REASON,
        after="  if (!is_client_) {\n",
        before="    waitUntilConnected(lock, true);\n",
    ),
    Edit(
        "greeting-accept",
        TCP + "pair.cc",
        """\
  struct sockaddr_storage addr;
  socklen_t addrlen = sizeof(addr);
  int rv;

  rv = accept(fd_, (struct sockaddr*)&addr, &addrlen);

  // Close the listening file descriptor whether we've successfully connected
  // or run into an error and will throw an exception.
  device_->unregisterDescriptor(fd_, this);
  ::close(fd_);
  fd_ = FD_INVALID;

  if (rv == -1) {
    signalException(GLOO_ERROR_MSG("accept: ", strerror(errno)));
    return;
  }

  // Connected, replace file descriptor
  fd_ = rv;

  // Common connection-made code
  handleConnected();
}
""",
        """\
  const int fd = accept(fd_, nullptr, nullptr);
  if (fd == -1) {
    if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
      signalException(GLOO_ERROR_MSG("accept: ", strerror(errno)));
    }
    return;
  }
  if (context_->greeting.empty()) {
    adopt(fd);
    return;
  }
  setSocketBlocking(fd, false);
  arrivals_.emplace_back(this, fd);
  device_->registerDescriptor(fd, EPOLLIN, &arrivals_.back());
}

void Pair::handleArrival(Arrival& arrival) {
  // As in handleEvents.
  std::unique_lock<std::mutex> lock(m_, std::try_to_lock);
  if (!lock || arrival.fd == FD_INVALID) {
    return;
  }
  const auto& greeting = context_->greeting;
  std::vector<char> said(greeting.size());
  const auto count = ::recv(arrival.fd, said.data(), said.size(), MSG_PEEK);
  if (count == -1 && (errno == EAGAIN || errno == EINTR)) {
    return;
  }
  if (count <= 0 || greeting.compare(0, count, said.data(), count) != 0) {
    closeArrival(arrival);
    return;
  }
  if (static_cast<size_t>(count) < greeting.size()) {
    return;
  }
  // It is all there, so that this does not wait.
  GLOO_ENFORCE_EQ(::recv(arrival.fd, said.data(), said.size(), 0), count);
  device_->unregisterDescriptor(arrival.fd, &arrival);
  const int fd = arrival.fd;
  arrival.fd = FD_INVALID;
  adopt(fd);
}

void Pair::closeArrival(Arrival& arrival) {
  if (arrival.fd != FD_INVALID) {
    device_->unregisterDescriptor(arrival.fd, &arrival);
    ::close(arrival.fd);
    arrival.fd = FD_INVALID;
  }
}

void Pair::closeArrivals() {
  for (auto& arrival : arrivals_) {
    closeArrival(arrival);
  }
}

void Pair::adopt(int fd) {
  closeArrivals();
  device_->unregisterDescriptor(fd_, this);
  ::close(fd_);
  fd_ = fd;
  handleConnected();
}
""",
        _REASON,
    ),
    added(
        "greeting-say",
        TCP + "pair.cc",
        """\
  // There is room for it, as nothing was sent before.
  const auto& greeting = context_->greeting;
  const auto sent = ::send(fd_, greeting.data(), greeting.size(), MSG_NOSIGNAL);
  if (sent != static_cast<ssize_t>(greeting.size())) {
    signalException(GLOO_ERROR_MSG("send ", peer_.str(), ": ", strerror(errno)));
    return;
  }

""",
        _REASON,
        after="""\
        GLOO_ERROR_MSG("connect ", peer_.str(), ": ", strerror(optval)));
    return;
  }

""",
    ),
    added(
        "greeting-close",
        TCP + "pair.cc",
        "        closeArrivals();\n",
        _REASON,
        after="        // The pair may be in the LISTENING state when it is destructed.\n",
    ),
)
