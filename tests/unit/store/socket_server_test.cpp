// SPDX-License-Identifier: MIT
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/byte_stream.hpp"
#include "store/protocol.hpp"
#include "store/socket.hpp"
#include "store/socket_store.hpp"
#include "store/socket_store_server.hpp"
#include "unit/store/soon.hpp"

namespace sluice::store {
namespace {

using base::Deadline;
using std::chrono::milliseconds;
using std::chrono::seconds;

Address new_address() {
  static int count = 0;
  Address address;
  address.kind = Address::Kind::unix_abstract;
  address.name = "sluice-server-" + std::to_string(::getpid()) + "-" + std::to_string(count++);
  return address;
}

// True if the server closed the connection; it must not answer.
bool is_closed(const base::Descriptor& socket) {
  char byte = 0;
  return receive_all(socket, {&byte, 1}, Deadline::after(seconds(10)), "test").code() ==
         StatusCode::unavailable;
}

TEST(SocketStoreServer, BadInputClosesThatConnectionOnly) {
  auto server = SocketStoreServer::start(new_address(), 0);
  ASSERT_TRUE(server.ok());
  const Address& address = (*server)->address();
  auto good = SocketStore::connect(address, {}, soon());
  ASSERT_TRUE(good.ok());
  Request request;
  request.key = "k";
  Hello hello;
  hello.name = address.name;
  std::string cut_hello = encode_hello(0, hello);
  cut_hello[0] = static_cast<char>(cut_hello[0] - 1);
  std::string bad_magic = encode_hello(0, hello);
  bad_magic[15] = static_cast<char>(bad_magic[15] ^ 1);  // In its name.
  for (const std::string& bytes :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(8, '\0'), std::string(8, '\xff'),
        encode_request(1, request),                       // No hello before it.
        encode_hello(0, hello) + encode_hello(1, hello),  // Two hellos.
        cut_hello, bad_magic}) {
    auto socket = connect_to(address, soon());
    ASSERT_TRUE(socket.ok());
    ASSERT_TRUE(send_all(*socket, bytes, soon(), "test").ok());
    EXPECT_TRUE(is_closed(*socket)) << bytes.size() << " bytes";
    EXPECT_TRUE((*good)->set("k", "v", soon()).ok());
  }
}

// Whatever follows there.
TEST(SocketStoreServer, ToldToAnotherVersionAreBoth) {
  auto server = SocketStoreServer::start(new_address(), 0);
  ASSERT_TRUE(server.ok());
  Hello hello;
  hello.version = 77;
  for (const int more : {0, 5}) {
    auto socket = connect_to((*server)->address(), soon());
    ASSERT_TRUE(socket.ok());
    std::string bytes = encode_hello(0, hello) + std::string(static_cast<std::size_t>(more), 'x');
    bytes[0] = static_cast<char>(bytes[0] + more);
    ASSERT_TRUE(send_all(*socket, bytes, soon(), "test").ok());
    pollfd answer{socket->number(), POLLIN, 0};
    ASSERT_EQ(poll_until({&answer, 1}, soon()), 1);
    std::string said(4096, '\0');
    const ssize_t got = ::recv(socket->number(), said.data(), said.size(), 0);
    ASSERT_GT(got, static_cast<ssize_t>(kFrameHeaderBytes));
    const auto reply = decode_reply(std::string_view(said).substr(
        kFrameHeaderBytes, static_cast<std::size_t>(got) - kFrameHeaderBytes));
    ASSERT_TRUE(reply.ok()) << reply.status().to_string();
    EXPECT_EQ(reply->reply.status.code(), StatusCode::mismatch);
    EXPECT_NE(
        reply->reply.status.message().find("version " + std::to_string(kProtocolVersion) + " "),
        std::string::npos);
    EXPECT_NE(reply->reply.status.message().find("version 77 "), std::string::npos);
    EXPECT_TRUE(is_closed(*socket));
  }
  // A client says so at once, rather than trying again until its deadline.
  const auto client = SocketStore::connect((*server)->address(), hello, soon());
  EXPECT_EQ(client.status().code(), StatusCode::mismatch) << client.status().to_string();
}

// A port is not a job's alone, as a name is.
TEST(SocketStoreServer, RanksOfAnotherJobAreTurnedAway) {
  Address address;
  address.host = "127.0.0.1";
  address.name = "job17";
  auto server = SocketStoreServer::start(address, 1);
  ASSERT_TRUE(server.ok());
  for (const char* name : {"job16", ""}) {
    Address other = (*server)->address();
    other.name = name;
    const auto client = SocketStore::connect(other, {0, 1}, Deadline::after(seconds(1)));
    EXPECT_EQ(client.status().code(), StatusCode::deadline_exceeded);
    const std::string text = client.status().to_string();
    EXPECT_NE(text.find("has another name"), std::string::npos) << text;
    EXPECT_EQ(text.find("job17"), std::string::npos) << text;
  }
  const auto own = SocketStore::connect((*server)->address(), {0, 1}, soon());
  EXPECT_TRUE(own.ok()) << own.status().to_string();
}

// Who has not said who it is may not make the server keep what it sends.
TEST(SocketStoreServer, StrangersSendNoLongFrames) {
  auto server = SocketStoreServer::start(new_address(), 0);
  ASSERT_TRUE(server.ok());
  auto socket = connect_to((*server)->address(), soon());
  ASSERT_TRUE(socket.ok());
  base::ByteWriter writer;
  writer.put(static_cast<std::uint32_t>(kHelloBytesMax + 1));
  ASSERT_TRUE(send_all(*socket, writer.take(), soon(), "test").ok());
  EXPECT_TRUE(is_closed(*socket));
  Address longest = new_address();
  longest.name += std::string(kNameBytesMax - longest.name.size(), 'x');
  auto other = SocketStoreServer::start(longest, 0);
  ASSERT_TRUE(other.ok());
  EXPECT_TRUE(SocketStore::connect(longest, {}, soon()).ok());
}

// Whose answers it does not hold all at once.
TEST(SocketStoreServer, AnswersAllThatWasAskedAtOnce) {
  auto server = SocketStoreServer::start(new_address(), 0);
  ASSERT_TRUE(server.ok());
  const Address& address = (*server)->address();
  auto good = SocketStore::connect(address, {}, soon());
  ASSERT_TRUE(good.ok());
  const std::string value(kValueBytesMax, 'v');
  ASSERT_TRUE((*good)->set("k", value, soon()).ok());
  constexpr int kRequests = 20;  // More than the server's bound, and than a socket holds.
  Hello hello;
  hello.name = address.name;
  std::string bytes = encode_hello(0, hello);
  Request request;
  request.operation = Operation::get;
  request.key = "k";
  for (std::uint64_t id = 1; id <= kRequests; ++id) bytes += encode_request(id, request);
  auto socket = connect_to(address, soon());
  ASSERT_TRUE(socket.ok());
  ASSERT_TRUE(send_all(*socket, bytes, soon(), "test").ok());
  std::this_thread::sleep_for(milliseconds(50));
  for (int reply = 0; reply <= kRequests; ++reply) {
    std::string header(kFrameHeaderBytes, '\0');
    ASSERT_TRUE(receive_all(*socket, header, soon(), "test").ok()) << reply;
    std::string payload(decode_frame_header(header).value(), '\0');
    ASSERT_TRUE(receive_all(*socket, payload, soon(), "test").ok()) << reply;
    const auto decoded = decode_reply(payload);
    ASSERT_TRUE(decoded.ok());
    EXPECT_EQ(decoded->id, static_cast<std::uint64_t>(reply));
    EXPECT_EQ(decoded->reply.value == value, reply > 0) << reply;
  }
}

TEST(SocketStoreServer, SurvivesRandomBytes) {
  auto server = SocketStoreServer::start(new_address(), 0);
  ASSERT_TRUE(server.ok());
  const Address& address = (*server)->address();
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    // A valid beginning, then noise in a well-framed payload.
    base::ByteWriter writer;
    const auto length = static_cast<std::uint32_t>(1 + random() % 64);
    writer.put(length);
    Hello hello;
    hello.name = address.name;
    std::string bytes = encode_hello(0, hello) + writer.take();
    for (std::uint32_t i = 0; i < length; ++i) bytes += static_cast<char>(random());
    auto socket = connect_to(address, soon());
    ASSERT_TRUE(socket.ok());
    ASSERT_TRUE(send_all(*socket, bytes, soon(), "test").ok());
  }
  auto good = SocketStore::connect(address, {}, soon());
  ASSERT_TRUE(good.ok());
  EXPECT_TRUE((*good)->set("k", "v", soon()).ok());
}

TEST(SocketStoreServer, AClientWaitsUntilItIsServed) {
  const Address address = new_address();
  std::thread late([&] {
    auto client = SocketStore::connect(address, {}, soon());
    ASSERT_TRUE(client.ok()) << client.status().to_string();
    EXPECT_TRUE((*client)->set("k", "v", soon()).ok());
  });
  std::this_thread::sleep_for(milliseconds(50));
  auto server = SocketStoreServer::start(address, 0);
  ASSERT_TRUE(server.ok());
  late.join();
  auto nobody = SocketStore::connect(new_address(), {}, Deadline::after(milliseconds(50)));
  ASSERT_FALSE(nobody.ok());
  EXPECT_EQ(nobody.status().code(), StatusCode::deadline_exceeded);
}

TEST(SocketStoreServer, ItsEndIsUnavailableToClients) {
  auto server = SocketStoreServer::start(new_address(), 0);
  ASSERT_TRUE(server.ok());
  auto client = SocketStore::connect((*server)->address(), {}, soon());
  ASSERT_TRUE(client.ok());
  std::thread waiter([&] {
    EXPECT_EQ((*client)->get("never", Deadline::never()).status().code(), StatusCode::unavailable);
  });
  std::this_thread::sleep_for(milliseconds(30));
  server->reset();
  waiter.join();
  EXPECT_EQ((*client)->set("k", "v", soon()).code(), StatusCode::unavailable);
}

TEST(SocketStoreServer, CountsItsClientsAndStopsListening) {
  const Address address = new_address();
  auto server = SocketStoreServer::start(address, 2);
  ASSERT_TRUE(server.ok());
  EXPECT_EQ(SocketStoreServer::start(address, 2).status().code(), StatusCode::io_error);
  auto first = SocketStore::connect(address, {0, 2}, soon());
  ASSERT_TRUE(first.ok());
  for (const Hello& hello : {Hello{0, 2}, Hello{2, 2}, Hello{1, 3}}) {
    EXPECT_EQ(SocketStore::connect(address, hello, soon()).status().code(), StatusCode::mismatch);
  }
  auto second = SocketStore::connect(address, {1, 2}, soon());
  ASSERT_TRUE(second.ok());
  EXPECT_FALSE(connect_to(address, soon()).ok());
  // The next world may use the name while this one is still served.
  auto next = SocketStoreServer::start(address, 2);
  EXPECT_TRUE(next.ok()) << next.status().to_string();
  EXPECT_EQ((*server)->wait_for_goodbyes(Deadline::after(milliseconds(20))).code(),
            StatusCode::deadline_exceeded);
  EXPECT_FALSE((*server)->wait_until_gone(Deadline::after(milliseconds(20))));
  (*first)->say_goodbye(soon());
  (*second)->say_goodbye(soon());
  EXPECT_TRUE((*server)->wait_for_goodbyes(soon()).ok());
  EXPECT_TRUE((*server)->wait_until_gone(soon()));
}

TEST(SocketStoreServer, ALostClientEndsTheWaitsOfTheOthers) {
  auto server = SocketStoreServer::start(new_address(), 3);
  ASSERT_TRUE(server.ok());
  const Address& address = (*server)->address();
  auto waiting = SocketStore::connect(address, {0, 3}, soon());
  auto leaving = SocketStore::connect(address, {1, 3}, soon());
  auto lost = SocketStore::connect(address, {2, 3}, soon());
  ASSERT_TRUE(waiting.ok() && leaving.ok() && lost.ok());
  (*leaving)->say_goodbye(soon());
  leaving->reset();  // Done, not lost.
  ASSERT_TRUE((*waiting)->set("k", "v", soon()).ok());
  std::thread waiter([&] {
    const Status status = (*waiting)->get("never", Deadline::never()).status();
    EXPECT_EQ(status.code(), StatusCode::unavailable);
    EXPECT_NE(status.message().find("rank 2"), std::string::npos) << status.message();
  });
  lost->reset();
  waiter.join();
  EXPECT_EQ((*waiting)->get("k", soon()).value(), "v");
  EXPECT_EQ((*server)->wait_for_goodbyes(soon()).code(), StatusCode::unavailable);
}

// As that of a container that is yet to be started. But where it is to be served, it has to be known.
TEST(SocketStoreServer, AHostThatDoesNotExistMayComeYet) {
  const Address unknown{Address::Kind::tcp, "name with spaces", 1, {}};
  const auto client = SocketStore::connect(unknown, {}, Deadline::after(milliseconds(50)));
  EXPECT_EQ(client.status().code(), StatusCode::deadline_exceeded);
  EXPECT_NE(client.status().message().find("cannot resolve host \"name with spaces\""),
            std::string::npos)
      << client.status().message();
  EXPECT_EQ(SocketStoreServer::start(unknown, 0).status().code(), StatusCode::invalid_argument);
}

}  // namespace
}  // namespace sluice::store
