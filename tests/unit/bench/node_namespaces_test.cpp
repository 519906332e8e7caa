// SPDX-License-Identifier: MIT
#include "node_namespaces.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "bootstrap/host_identity.hpp"

namespace sluice::bench {
namespace {

namespace fs = std::filesystem;

std::vector<ino_t> own_namespaces() {
  std::vector<ino_t> numbers;
  for (const char* path : {"/proc/self/ns/net", "/proc/self/ns/uts", "/proc/self/ns/mnt"}) {
    struct stat facts {};
    stat(path, &facts);
    numbers.push_back(facts.st_ino);
  }
  return numbers;
}

/// Whether `check` holds in a process of its own.
template <typename Check>
bool holds_in_child(const Check& check) {
  const pid_t pid = fork();
  if (pid == 0) _exit(check() ? 0 : 1);
  int status = 0;
  return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(NodeNamespaces, NodesAreApartAndNothingIsSeenOutside) {
  const std::vector<ino_t> before = own_namespaces();
  const fs::path folder = fs::current_path();
  const Result<NodeNamespaces> nodes = NodeNamespaces::make(2);
  // Also when it has failed half-way.
  EXPECT_EQ(own_namespaces(), before);
  EXPECT_EQ(fs::current_path(), folder);
  if (!nodes) GTEST_SKIP() << "no namespaces: " << nodes.status().message();
  const std::string outside = bootstrap::host_name();

  const std::string name = "sluice-namespaces-" + std::to_string(getpid());
  for (int node = 0; node < 2; ++node) {
    EXPECT_TRUE(holds_in_child([&] {
      if (!nodes->enter(node)) return false;
      const std::vector<ino_t> own = own_namespaces();
      for (std::size_t i = 0; i < own.size(); ++i) {
        if (own[i] == before[i]) return false;
      }
      // A file of the other node, of the same name, would be seen.
      for (const char* shared : {"/tmp/", "/dev/shm/"}) {
        if (!fs::is_empty(shared)) return false;
        std::ofstream(shared + name) << node;
      }
      return bootstrap::host_name() == "node" + std::to_string(node);
    })) << node;
  }
  EXPECT_FALSE(fs::exists("/tmp/" + name));
  EXPECT_FALSE(fs::exists("/dev/shm/" + name));
  EXPECT_EQ(bootstrap::host_name(), outside);
}

TEST(NodeNamespaces, WhatIsWrittenOutsideIsThere) {
  const Result<NodeNamespaces> nodes = NodeNamespaces::make(2);
  if (!nodes) GTEST_SKIP() << "no namespaces: " << nodes.status().message();
  EXPECT_EQ(nodes->outside(""), "");
  EXPECT_EQ(nodes->outside("-"), "-");
  const std::string path = "/tmp/sluice-outside-" + std::to_string(getpid());
  const std::string name = nodes->outside(path);
  EXPECT_TRUE(holds_in_child(
      [&] { return nodes->enter(1).ok() && static_cast<bool>(std::ofstream(name) << "here"); }));
  std::string text;
  std::ifstream(path) >> text;
  EXPECT_EQ(text, "here");
  fs::remove(path);
}

TEST(NodeNamespaces, AddressesAreDistinct) {
  EXPECT_EQ(NodeNamespaces::address(0), "10.77.0.1");
  EXPECT_EQ(NodeNamespaces::address(249), "10.77.0.250");
  EXPECT_EQ(NodeNamespaces::address(250), "10.77.1.1");
}

}  // namespace
}  // namespace sluice::bench
