// SPDX-License-Identifier: MIT
#include "store/address.hpp"

#include <gtest/gtest.h>

#include <string>

namespace sluice::store {
namespace {

TEST(Address, ReadsAndWritesEveryForm) {
  for (const char* text :
       {"tcp:host.example:29500", "tcp:127.0.0.1:1", "tcp:[::1]:65535", "tcp:host:80/job 17.0",
        "tcp:[::1]:80/with:colons/and more", "unix:a", "unix:with:colons and spaces"}) {
    const auto address = parse_address(text);
    ASSERT_TRUE(address.ok()) << text << ": " << address.status().to_string();
    EXPECT_EQ(to_string(address.value()), text);
  }
  EXPECT_EQ(parse_address("tcp:[::1]:80").value().host, "::1");
  EXPECT_EQ(parse_address("tcp:h:80").value().port, 80);
  EXPECT_EQ(parse_address("tcp:h:80/a/b:1").value().name, "a/b:1");
  EXPECT_EQ(parse_address("tcp:h:80/a/b:1").value().port, 80);
}

TEST(Address, RefusesEverythingElse) {
  for (const std::string& text :
       {std::string(), std::string("tcp:"), std::string("tcp:host"), std::string("tcp:host:"),
        std::string("tcp::80"), std::string("tcp:host:0"), std::string("tcp:host:65536"),
        std::string("tcp:host:80x"), std::string("tcp:host:-1"), std::string("tcp:::1:80"),
        std::string("tcp:[::1:80"), std::string("tcp:[]:80"), std::string("unix:"),
        "unix:" + std::string(101, 'n'), std::string("tcp:host:80/"), std::string("tcp:host/name"),
        "tcp:host:80/" + std::string(101, 'n'), std::string("udp:host:80"),
        std::string("host:80")}) {
    const auto address = parse_address(text);
    ASSERT_FALSE(address.ok()) << text;
    EXPECT_EQ(address.status().code(), StatusCode::invalid_argument);
    EXPECT_NE(address.status().message().find("expected tcp:host:port"), std::string::npos);
  }
}

}  // namespace
}  // namespace sluice::store
