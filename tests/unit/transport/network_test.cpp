// SPDX-License-Identifier: MIT
// What variables of the environment say of the network between nodes.
#include "transport/network.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace sluice::transport {
namespace {

using Variables = std::map<std::string, std::string>;

Result<std::shared_ptr<Network>> network(const Variables& variables) {
  return network_of(base::Environment([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  }));
}

TEST(NetworkOf, NothingGivesTheDefaults) {
  const auto made = network({});
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  const RelaySettings& relay = (*made)->relay;
  EXPECT_EQ(relay.patience, std::chrono::milliseconds(900));
  EXPECT_EQ(relay.chunk_bytes, 524288U);
  EXPECT_EQ(relay.message_rows, 64);
}

TEST(NetworkOf, WhatIsSaidIsTaken) {
  const auto made = network({{"SLUICE_NETWORK", "memory:3"},
                             {"SLUICE_NETWORK_PATIENCE_MS", "1"},
                             {"SLUICE_NETWORK_CHUNK", "4096"},
                             {"SLUICE_NETWORK_MESSAGE_ROWS", "256"}});
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  const RelaySettings& relay = (*made)->relay;
  EXPECT_EQ(relay.patience, std::chrono::milliseconds(1));
  EXPECT_EQ(relay.chunk_bytes, 4096U);
  EXPECT_EQ(relay.message_rows, 256);
}

TEST(NetworkOf, MemoryOfGpus) {
  for (const char* name : {"memory", "memory-gpu", "memory-gpu:4", "memory-gpu:5"}) {
    const auto made = network({{"SLUICE_NETWORK", name}});
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    EXPECT_EQ((*made)->relay.gpu_rows, RelaySettings::GpuRows::best);
    const auto endpoint = (*made)->open(0, 1, 0, {.device_memory = true});
    ASSERT_TRUE(endpoint.ok());
    EXPECT_EQ((*endpoint)->traits().device_memory, std::string(name) != "memory") << name;
  }
  EXPECT_EQ((*network({{"SLUICE_NETWORK_GPU", "staged"}}))->relay.gpu_rows,
            RelaySettings::GpuRows::staged);
  EXPECT_EQ((*network({{"SLUICE_NETWORK_GPU", "direct"}}))->relay.gpu_rows,
            RelaySettings::GpuRows::direct);
}

TEST(NetworkOf, AnAddressOfThisMachine) {
  EXPECT_TRUE(network({{"SLUICE_NETWORK_ADDRESS", "127.0.0.1"}}).ok());
  EXPECT_TRUE(network({{"SLUICE_NETWORK_ADDRESS", "localhost"}}).ok());
  EXPECT_TRUE(network({{"SLUICE_NETWORK_ADDRESS", ""}}).ok());
  std::vector<const char*> none{"0.0.0.0", "255.255.255.255", "224.0.0.1", "::", "ff02::1"};
  // An address for examples, which nobody has (RFC 5737), but where the system lets anybody listen at any.
  std::ifstream nonlocal("/proc/sys/net/ipv4/ip_nonlocal_bind");
  if (nonlocal.get() == '0') none.push_back("192.0.2.1");
  for (const char* address : none) {
    for (const char* name : {"net", "memory"}) {
      const Status status =
          network({{"SLUICE_NETWORK", name}, {"SLUICE_NETWORK_ADDRESS", address}}).status();
      EXPECT_EQ(status.code(), StatusCode::invalid_argument) << address;
      EXPECT_TRUE(
          status.message().starts_with(std::string("SLUICE_NETWORK_ADDRESS = '") + address +
                                       "', expected an address or a name of this machine: "))
          << status.to_string();
    }
  }
}

TEST(NetworkOf, AReceiverOrNone) {
  for (const char* receiver : {"yes", "no"}) {
    EXPECT_TRUE(network({{"SLUICE_NETWORK_RECEIVER", receiver}}).ok()) << receiver;
  }
}

TEST(NetworkOf, NetworkCards) {
  const auto made =
      network({{"SLUICE_NETWORK", "tcp,net"}, {"SLUICE_NETWORK_NICS", "no-such-card,nor-this"}});
  ASSERT_TRUE(made.ok());
  const Status status = (*made)->open(0, 1, 0, {}).status();
  if (status.code() == StatusCode::unimplemented) GTEST_SKIP() << "built without libfabric";
  EXPECT_EQ(status.code(), StatusCode::unavailable);
  EXPECT_NE(status.message().find("tcp, net with all of the network cards no-such-card, nor-this"),
            std::string::npos)
      << status.message();
}

TEST(NetworkOf, LeastAndMostCredits) {
  for (const char* credits : {"4", "65536"}) {
    EXPECT_TRUE(network({{"SLUICE_NETWORK_CREDITS", credits}}).ok()) << credits;
  }
}

struct Bad {
  const char* variable;
  const char* value;
  const char* expected;
};

class NetworkOfBad : public ::testing::TestWithParam<Bad> {};

TEST_P(NetworkOfBad, SaysWhatWasExpected) {
  const auto made = network({{GetParam().variable, GetParam().value}});
  ASSERT_FALSE(made.ok());
  EXPECT_EQ(made.status().code(), StatusCode::invalid_argument);
  EXPECT_EQ(made.status().message(), std::string(GetParam().variable) + " = '" + GetParam().value +
                                         "', expected " + GetParam().expected);
}

constexpr const char* kMemory = "memory or memory-gpu, with :seed, a number, behind it or not";
constexpr const char* kSignals = "immediate, ordered or serial";
constexpr const char* kPatience = "1 to 86400000 milliseconds, a day";
constexpr const char* kBundle = "0 to 4294967295 bytes";
constexpr const char* kNames = "names with commas between them, and no spaces";
constexpr const char* kChunk = "4096 to 1073741824 bytes";
INSTANTIATE_TEST_SUITE_P(
    Values, NetworkOfBad,
    ::testing::Values(
        Bad{"SLUICE_NETWORK", "memory:", kMemory}, Bad{"SLUICE_NETWORK", "memory-2", kMemory},
        Bad{"SLUICE_NETWORK", "memory-gpus", kMemory},
        Bad{"SLUICE_NETWORK_GPU", "yes", "staged or direct"},
        Bad{"SLUICE_NETWORK_RECEIVER", "1", "yes or no"},
        Bad{"SLUICE_NETWORK_SIGNALS", "loud", kSignals}, Bad{"SLUICE_NETWORK_RAILS", "0", "1 to 8"},
        Bad{"SLUICE_NETWORK_RAILS", "9", "1 to 8"}, Bad{"SLUICE_NETWORK_BUNDLE", "-1", kBundle},
        Bad{"SLUICE_NETWORK_BUNDLE", "4294967296", kBundle},
        Bad{"SLUICE_NETWORK_NICS", ",", kNames}, Bad{"SLUICE_NETWORK_NICS", " eth0", kNames},
        Bad{"SLUICE_NETWORK", "net,", kNames}, Bad{"SLUICE_NETWORK", "net,,tcp", kNames},
        Bad{"SLUICE_NETWORK", "net ", kNames},
        Bad{"SLUICE_NETWORK", "shm", "a provider that reaches other machines"},
        Bad{"SLUICE_NETWORK_PATIENCE_MS", "0", kPatience},
        Bad{"SLUICE_NETWORK_PATIENCE_MS", "1s", kPatience},
        Bad{"SLUICE_NETWORK_PATIENCE_MS", "86400001", kPatience},
        Bad{"SLUICE_NETWORK_CHUNK", "4095", kChunk},
        Bad{"SLUICE_NETWORK_CHUNK", "1073741825", kChunk},
        Bad{"SLUICE_NETWORK_CHUNK", "512K", kChunk},
        Bad{"SLUICE_NETWORK_MESSAGE_ROWS", "0", "1 to 256"},
        Bad{"SLUICE_NETWORK_MESSAGE_ROWS", "257", "1 to 256"},
        Bad{"SLUICE_NETWORK_CREDITS", "3", "4 to 65536"},
        Bad{"SLUICE_NETWORK_CREDITS", "65537", "4 to 65536"}));

}  // namespace
}  // namespace sluice::transport
