// SPDX-License-Identifier: MIT
#pragma once

#include <poll.h>

#include <cstdint>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "base/descriptor.hpp"
#include "store/address.hpp"
#include "store/attendance.hpp"
#include "store/key_value_table.hpp"
#include "store/protocol.hpp"

namespace sluice::store {

/// What the thread of a SocketStoreServer runs: one poll() over the listener and all connections.
class ServerLoop {
 public:
  /// `attendance` is told of goodbyes and losses where `clients` are counted.
  ServerLoop(base::Descriptor listener, const Address& address, int clients,
             Attendance& attendance);

  /// Serves until `stop` becomes readable.
  void run(const base::Descriptor& stop);

 private:
  struct Connection {
    base::Descriptor socket;
    std::string input;
    std::string output;
    bool greeted = false;
    int client = -1;       // Of a counted one, until its goodbye.
    bool closing = false;  // Closed once `output` is sent.
    std::uint64_t waiting_id = 0;
    std::optional<Request> waiting;  // A get whose key, or one of whose keys, is not there yet.
  };

  void accept_waiting();
  bool drop_stranger();
  /// False: the connection is to be closed.
  bool serve(Connection& connection, short events);
  bool receive(Connection& connection);
  bool handle_input(Connection& connection);
  bool handle(Connection& connection, DecodedRequest& message);
  Status greet(Connection& connection, const Hello& hello);
  void note_end(const Connection& connection);
  void answer_waiting();
  static bool send(Connection& connection);

  base::Descriptor listener_;
  const bool same_user_only_;
  const std::string name_;  // That who comes has to know.
  bool turned_away_ = false;
  Attendance& attendance_;
  std::vector<bool> awaited_;  // Clients that have not come; empty where they are not counted.
  KeyValueTable table_;
  std::list<Connection> connections_;
};

}  // namespace sluice::store
