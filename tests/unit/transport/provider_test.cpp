// SPDX-License-Identifier: MIT
//
// What providers are asked for. None of them answers: what they would do is not known here.
#include "transport/libfabric/provider.hpp"

#include <gtest/gtest.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include <string>
#include <vector>

namespace sluice::transport {
namespace {

struct Question {
  std::string node;
  std::size_t immediate_bytes = 0;
  bool in_order = false;
  std::size_t entries = 0;
};
std::vector<Question> questions;

int note(std::uint32_t /*version*/, const char* node, const char* /*service*/,
         std::uint64_t /*flags*/, const fi_info* hints, fi_info** /*info*/) {
  questions.push_back({node != nullptr ? node : "", hints->domain_attr->cq_data_size,
                       hints->tx_attr->msg_order == FI_ORDER_WAW, hints->tx_attr->size});
  return -FI_ENODATA;
}

/// Of one provider, until it has said no to all.
std::vector<Question> asked(const std::string& provider, const std::string& address) {
  const Result<const Library*> real = Library::load();
  if (!real.ok()) return {};
  Library library = **real;
  library.getinfo = &note;
  LibfabricSettings settings;
  settings.providers = {provider};
  settings.address = address;
  questions.clear();
  EXPECT_FALSE(choose_provider(library, settings).ok());
  // Behind them it is asked which others there are.
  questions.resize(6);
  return questions;
}

class AskedProvider : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!Library::load().ok()) GTEST_SKIP() << Library::load().status().to_string();
  }
};

// Of EFA and Slingshot a node is the name of a card: given an address, they would offer nothing, and TCP be taken.
TEST_F(AskedProvider, AddressesAreForThoseThatHaveThem) {
  for (const char* name : {"verbs;ofi_rxm", "tcp", "net", "tcp;ofi_rxm"}) {
    EXPECT_EQ(asked(name, "10.0.0.7").front().node, "10.0.0.7") << name;
  }
  for (const char* name : {"efa-direct", "efa", "cxi"}) {
    EXPECT_EQ(asked(name, "10.0.0.7").front().node, "") << name;
  }
  EXPECT_EQ(asked("tcp", "").front().node, "");
}

// What is offered first has immediates, if anything has.
TEST_F(AskedProvider, IsAskedForTheStrongestFirst) {
  const std::vector<Question> all = asked("tcp", "");
  ASSERT_EQ(all.size(), 6U);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].immediate_bytes, i < 2 ? 4U : 0U) << i;
    EXPECT_EQ(all[i].in_order, i < 4) << i;
    EXPECT_EQ(all[i].entries, i % 2 == 0 ? 4096U : 0U) << i;
  }
}

}  // namespace
}  // namespace sluice::transport
